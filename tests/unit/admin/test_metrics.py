"""Tests of the metric families of the server, its devices and its replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client.core import Metric

from admin.metrics import (
    MIB,
    BuildsSeen,
    DevicesSeen,
    GatewaysSeen,
    HostsSeen,
    ReplicasSeen,
    ServerSeen,
    Source,
    server_families,
    show_builds,
    show_devices,
    show_gateways,
    show_golden,
    show_held,
    show_hosts,
    show_replicas,
)
from gateway.metrics.ledger import ENDINGS, Balance
from pool_manager.core.hosts import HostState
from pool_manager.core.state import Device
from pool_manager.golden import SampleCount
from pool_manager.host import HostView
from pool_manager.metrics import Counts, Supplied
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from pool_manager.usage import HeldTotal
from registry.store.history import HistoryStatistics
from runtime_image.contract.gpus import Reading, Telemetry
from runtime_image.contract.samples import SampleVerdict


def test_the_server_says_what_it_is_and_how_it_writes() -> None:
    """The server's families have version, driver, processes, history, and the process's system
    figures."""
    written = HistoryStatistics(buffered=3, written=10, dropped=2, failed_flushes=1)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in server_families("process")(ServerSeen(written, running=1, deaths=0))
        for sample in family.samples
    }

    assert found["fngate_build_info", version("fngate"), "process"] == 1
    assert found["fngate_gateway_processes",] == 1
    assert found["fngate_gateway_process_deaths_total",] == 0
    assert found["fngate_history_waiting_records",] == 3
    assert found["fngate_history_dropped_records_total",] == 2
    assert found["fngate_history_failed_flushes_total",] == 1
    assert found["process_resident_memory_bytes",] > 0
    assert found["process_cpu_seconds_total",] > 0


GPU = Occupancy(
    Device("GPU-a", "cuda", 23_000.0),
    "quarantined",
    "r1: still there",
    ("r1",),
    700.0,
    GpuView("NVIDIA A", "0", "9.0", "580", 24_000.0, 900.0, 100.0, 0.25),
    650.0,
)
SLOT = Occupancy(Device("cpu:0", "cpu", 8_000.0, "cpu"), "free", "", (), 0.0, None)
BARE = Occupancy(
    Device("GPU-b", "cuda"),
    "free",
    "",
    (),
    0.0,
    GpuView(None, "1", None, None, None, None, 0.0),
)


def device_samples(*devices: Occupancy) -> dict[tuple[str, str], float]:
    """Return every sample by its name and device."""
    return {
        (sample.name, sample.labels["device"]): sample.value
        for family in show_devices(DevicesSeen(list(devices), {"GPU-a": 2.0, "gone": 1.0}))
        for sample in family.samples
    }


def test_memory_is_in_bytes() -> None:
    """Memory of a GPU is in bytes, as its driver reports it."""
    found = device_samples(GPU, SLOT)

    assert found["fngate_device_memory_bytes", "GPU-a"] == 24_000 * MIB
    assert found["fngate_device_memory_used_bytes", "GPU-a"] == 900 * MIB
    assert found["fngate_device_memory_charged_bytes", "GPU-a"] == 700 * MIB
    assert found["fngate_device_memory_leaked_bytes", "GPU-a"] == 650 * MIB
    assert found["fngate_device_memory_reclaimed_bytes_total", "GPU-a"] == 2 * MIB
    assert found["fngate_device_utilization_ratio", "GPU-a"] == 0.25
    assert found["fngate_device_memory_bytes", "cpu:0"] == 8_000 * MIB
    assert found["fngate_device_state", "GPU-a"] == 1


def test_unknown_figures_have_no_sample() -> None:
    """A CPU slot, and a GPU whose driver does not respond, have no samples for unknown figures."""
    found = device_samples(SLOT, BARE)
    names = {name for name, _ in found}

    assert "fngate_device_memory_used_bytes" not in names
    assert "fngate_device_utilization_ratio" not in names
    assert ("fngate_device_memory_bytes", "GPU-b") not in found
    assert found["fngate_device_memory_reclaimed_bytes_total", "cpu:0"] == 0


def samples(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_replica_metrics_show_the_last_snapshot() -> None:
    """Replica metrics show the last snapshot; later counts wait for the next one."""
    counted = Counts(Counter({("standby", "ready"): 3}), Counter({("serving", "killed"): 1}))
    supplied = [Supplied("default/a@1", 2, {"ready": 1, "loading": 1})]
    families = Source(lambda: ReplicasSeen(counted.copy(), supplied, 2), show_replicas)
    counted.starts["standby", "ready"] += 1

    assert {key: value for key, value in samples(families.collect()).items() if value} == {
        ("fngate_pool_wanted_replicas", "default/a@1"): 2,
        ("fngate_pool_replicas", "default/a@1", "ready"): 1,
        ("fngate_pool_replicas", "default/a@1", "loading"): 1,
        ("fngate_waiting_starts",): 2,
        ("fngate_replica_starts_total", "standby", "ready"): 3,
        ("fngate_replica_failures_total", "serving", "killed"): 1,
    }


def test_counters_exist_from_the_start() -> None:
    """Counters exist from the start, so that a first failure is an increase from 0 for an alert."""
    found = samples(show_replicas(ReplicasSeen(Counts(), [], 0)))

    assert found["fngate_replica_failures_total", "starting", "load"] == 0
    assert found["fngate_replica_starts_total", "trial", "failed"] == 0
    assert found["fngate_evictions_total", "busy"] == 0
    assert found["fngate_cold_starts_total", "failed"] == 0
    assert found["fngate_batching_refuted_total",] == 0


def test_builds_are_counted_by_outcome() -> None:
    """Every outcome is there from the start; what runs and waits is as of the last snapshot."""
    assert samples(show_builds(BuildsSeen({"done": 2}, running=1, waiting=3))) == {
        ("fngate_builds_total", "done"): 2,
        ("fngate_builds_total", "failed"): 0,
        ("fngate_builds_total", "given_up"): 0,
        ("fngate_running_builds",): 1,
        ("fngate_waiting_builds",): 3,
    }


def test_hosts_have_metrics_of_state_and_transfers() -> None:
    """A family has a sample per host; what is unknown has none, nor has this machine what only a
    host over SSH has."""
    hosts = [
        HostView("local", state=HostState.UP),
        HostView("gpu2", "nn@gpu2", "draining", rtt_ms=0.5, cached_mib=3.0, transferred_bytes=7),
        HostView("gpu3", "nn@gpu3", "unreachable", disk_free_mib=0.0, cached_mib=0.0),
    ]
    seen = HostsSeen(hosts, {"local": 0.0, "gpu2": 5.0})

    assert samples(show_hosts(seen)) == {
        ("fngate_host_up", "local"): 1,
        ("fngate_host_up", "gpu2"): 1,
        ("fngate_host_up", "gpu3"): 0,
        ("fngate_host_rtt_seconds", "gpu2"): 0.0005,
        ("fngate_host_files_bytes", "gpu2"): 3 * MIB,
        ("fngate_host_files_bytes", "gpu3"): 0,
        ("fngate_host_disk_free_bytes", "gpu3"): 0,
        ("fngate_host_transferred_bytes_total", "gpu2"): 7,
        ("fngate_host_parked_bytes", "local"): 0,
        ("fngate_host_parked_bytes", "gpu2"): 5 * MIB,
    }


def test_a_gpu_shows_its_power_and_its_errors() -> None:
    """Errors have their number as a label; a GPU without either has no sample."""
    reading = Reading("GPU-a", "0", telemetry=Telemetry(power_w=312.5))
    view = GpuView(None, "0", None, None, None, None, 0.0, reading=reading, xids={31: 2, 79: 1})
    one = Occupancy(Device("GPU-a", "cuda"), "free", "", (), 0.0, view)
    found = {
        (sample.name, sample.labels.get("xid", "")): sample.value
        for family in show_devices(DevicesSeen([one, BARE, SLOT], {}))
        for sample in family.samples
        if sample.labels["device"] == "GPU-a" and "memory" not in sample.name
    }

    assert found == {
        ("fngate_device_state", ""): 1,
        ("fngate_device_power_watts", ""): 312.5,
        ("fngate_device_xid_errors_total", "31"): 2,
        ("fngate_device_xid_errors_total", "79"): 1,
    }


def test_checks_count_by_verdict() -> None:
    """Functions that were never checked are left out."""
    (family,) = show_golden([SampleCount("default", "chat", SampleVerdict.WRONG, 2)])
    (sample,) = family.samples

    assert (sample.name, sample.value) == ("fngate_golden_samples_total", 2)
    assert sample.labels == {"function": "chat", "namespace": "default", "verdict": "wrong"}


def test_functions_have_time_and_energy_of_devices() -> None:
    """Devices without a counter have no energy."""
    totals = [
        HeldTotal("default", "digits", "cuda", 20.0, 6000.0),
        HeldTotal("default", "_idle", "cpu", 5.0, 0.0),
    ]
    found = {
        (sample.name, sample.labels["function"], sample.labels["kind"]): sample.value
        for family in show_held(totals)
        for sample in family.samples
    }

    assert found == {
        ("fngate_function_device_seconds_total", "digits", "cuda"): 20.0,
        ("fngate_function_device_seconds_total", "_idle", "cpu"): 5.0,
        ("fngate_function_energy_joules_total", "digits", "cuda"): 6000.0,
    }


def test_wakes_have_their_function_and_outcome() -> None:
    """The name of a function is apart from its namespace."""
    counts = Counts(wakes=Counter({("default/llm", "right"): 3, ("default/llm", "wrong"): 0}))
    parked = Supplied("default/llm@1", 0, {"parked": 1})
    found = samples(show_replicas(ReplicasSeen(counts, [parked], 0)))

    assert found["fngate_wakes_total", "default", "llm", "right"] == 3
    assert found["fngate_wakes_total", "default", "llm", "wrong"] == 0
    assert found["fngate_pool_replicas", "default/llm@1", "parked"] == 1


def test_a_residue_is_a_part_of_what_is_charged() -> None:
    """A device without parked replicas has a residue of 0."""
    one = Occupancy(Device("GPU-a", "cuda"), "free", "", (), 500.0, None, 0.0, ("r1",), 500.0)
    found = {
        (sample.name, sample.labels["device"]): sample.value
        for family in show_devices(DevicesSeen([one, SLOT], {}))
        for sample in family.samples
    }

    assert found["fngate_device_memory_residue_bytes", "GPU-a"] == 500 * MIB
    assert found["fngate_device_memory_charged_bytes", "GPU-a"] == 500 * MIB
    assert found["fngate_device_memory_residue_bytes", SLOT.device.id] == 0


def test_the_ledger_has_every_series_from_the_start() -> None:
    """Every ending and place is exported as 0, so that zero differs from unknown."""
    found = samples(show_gateways(GatewaysSeen(Balance(), {}, 3)))

    assert found["fngate_accepted_total",] == 0
    assert {key[1] for key in found if key[0] == "fngate_ended_total"} == set(ENDINGS)
    assert found["fngate_open_requests", "held"] == found["fngate_open_requests", "in_flight"] == 0
    assert not any(key[0] == "fngate_held" for key in found)


def test_requests_and_pools_are_shown() -> None:
    """Held requests, those in flight, pools and tasks have their families."""
    balance = Balance(3, {"completed": 1}, {"a": 1}, {"a": 1})
    seen = GatewaysSeen(balance, {"a": "warm"}, 7)

    assert {key: value for key, value in samples(show_gateways(seen)).items() if value} == {
        ("fngate_accepted_total",): 3,
        ("fngate_ended_total", "completed"): 1,
        ("fngate_open_requests", "held"): 1,
        ("fngate_open_requests", "in_flight"): 1,
        ("fngate_held", "a"): 1,
        ("fngate_in_flight", "a"): 1,
        ("fngate_pool_state", "a", "warm"): 1,
        ("fngate_tasks",): 7,
    }
