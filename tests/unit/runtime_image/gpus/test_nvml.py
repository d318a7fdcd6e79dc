"""The driver's library through the real pynvml, over a stand-in with the real structures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from runtime_image.contract.gpus import (
    Ancestor,
    GpuProcess,
    Link,
    NoDriver,
    Reading,
    Snapshot,
    Telemetry,
    XidEvent,
)
from runtime_image.gpus.nvml import EVENTS_MAX, Nvml
from tests.support.nvml.board import (
    FUNCTION_NOT_FOUND,
    NO_DRIVER,
    NO_PERMISSION,
    NOT_SUPPORTED,
    WRONG_VERSION,
    Board,
    Gpu,
)

A, B = "GPU-aaaa", "GPU-bbbb"


@pytest.fixture
def nvml(board: Board) -> Iterator[Nvml]:
    """An open session over two GPUs."""
    board.add(Gpu(A, 24_000, 400, 100), Gpu(B, 80_000, 500, name="NVIDIA B", capability=(8, 6)))
    made = Nvml()
    made.open()
    yield made
    made.close()


def test_every_gpu_is_read(nvml: Nvml, board: Board) -> None:
    """Name, number, memory without the reserved part, capability, processes, driver."""
    board.claim(A, 71, 2_000)
    board.claim(A, 72, None)
    seen = nvml.read()
    first, second = seen.gpus

    assert (seen.driver, seen.lost, seen.unreadable) == ("580.65.06", {}, ())
    assert (first.uuid, first.index, first.name) == (A, "0", "NVIDIA Stand-in")
    assert (first.total_mib, first.reserved_mib, first.used_mib) == (24_000, 400, 2_100)
    assert first.processes == (GpuProcess(71, 2_000.0), GpuProcess(72, None))
    assert (second.name, second.capability, second.processes) == ("NVIDIA B", (8, 6), ())
    assert seen.find(B) == second
    assert seen.find("GPU-cccc") is None


def test_connections_of_gpus_are_read(nvml: Nvml, board: Board) -> None:
    """Each two whole GPUs, in the order of their PCI addresses, whatever the driver's numbers are;
    what the driver does not report is None."""
    board.add(Gpu("GPU-cccc"), Gpu("GPU-dddd"), Gpu("MIG-1", parent="GPU-dddd"))
    for uuid, bus in ((A, 0x41), (B, 0x18), ("GPU-cccc", 0x9A)):
        board.sense(uuid, pci_bus=bus)
    board.link(A, B, 50, nvlink=0)
    board.link(B, "GPU-cccc", 30, nvlink=5, peer=1)
    nvml.read()

    assert nvml.links() == (
        Link(B, A, Ancestor.SYSTEM, has_nvlink=True, has_peer_access=True),
        Link(B, "GPU-cccc", Ancestor.HOSTBRIDGE, has_nvlink=False, has_peer_access=False),
        Link(A, "GPU-cccc"),
    )
    board.link(A, "GPU-cccc", 35)
    assert nvml.links()[2].ancestor is None


def test_a_snapshot_has_the_connections_that_are_known(nvml: Nvml, board: Board) -> None:
    """They are read once, and again when other GPUs are there."""
    board.add(Gpu("GPU-cccc"))
    board.link(A, B, 50, nvlink=0)
    known = Link(A, B, Ancestor.SYSTEM, has_nvlink=True, has_peer_access=True)
    assert nvml.read().links == (known,)

    board.link("GPU-cccc", B, 10)
    assert nvml.read().links == (known,)
    gone = board.remove(A)
    assert [(one.first, one.second) for one in nvml.read().links] == [(B, "GPU-cccc")]
    board.add(gone)
    assert len(nvml.read().links) == 2


def test_many_processes_are_read(nvml: Nvml, board: Board) -> None:
    """All processes are read, whatever their number."""
    for pid in range(100):
        board.claim(A, pid, 1)
    reading = nvml.read_one(A)

    assert reading is not None
    assert reading.processes is not None
    assert {process.pid for process in reading.processes} == set(range(100))


def test_the_driver_says_how_busy_a_gpu_is(nvml: Nvml, board: Board) -> None:
    """Utilization is a share of time, None if not reported; it is not queried for slices."""
    board.claim(A, 71, 2_000)
    board.claim(A, 72, 10)
    board.add(Gpu("MIG-1", 10_000, parent=B, instance=1))
    assert [gpu.utilization for gpu in nvml.read().gpus] == [0.2, None]
    board.answer("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)

    assert [gpu.utilization for gpu in nvml.read().gpus] == [None, None]


def test_slices_take_the_place_of_their_gpu(nvml: Nvml, board: Board) -> None:
    """A GPU in MIG mode is read as its slices, each with its own memory and processes."""
    board.add(
        Gpu("MIG-1", 10_000, parent=B, instance=1, name="B MIG 1g.10gb"),
        Gpu("MIG-2", 20_000, parent=B, instance=5),
    )
    board.claim("MIG-2", 9, 300)
    seen = nvml.read()

    assert [gpu.uuid for gpu in seen.gpus] == [A, "MIG-1", "MIG-2"]
    one, two = seen.gpus[1:]
    assert (one.index, one.parent, one.instance, one.name) == ("1:0", B, 1, "B MIG 1g.10gb")
    assert (one.total_mib, one.used_mib, one.capability) == (10_000, 0, (8, 6))
    assert (two.index, two.instance, two.used_mib) == ("1:1", 5, 300)
    assert two.processes == (GpuProcess(9, 300.0),)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetCudaComputeCapability", "capability"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
    ],
)
def test_what_a_driver_does_not_tell_is_none(
    nvml: Nvml, board: Board, call: str, field: str, code: int
) -> None:
    """A failed query gives None and does not affect the others."""
    before = nvml.read().gpus[0]
    board.answer(call, code)
    after = nvml.read().gpus[0]

    assert getattr(before, field) is not None
    assert getattr(after, field) is None
    assert (after.uuid, after.total_mib, after.used_mib) == (A, 24_000, 100)


def test_an_old_driver_tells_memory_the_old_way(nvml: Nvml, board: Board) -> None:
    """Without the second version of the memory structure the reserved memory counts as used."""
    board.answer("nvmlDeviceGetMemoryInfo_v2", FUNCTION_NOT_FOUND)
    seen = nvml.read().gpus[0]

    assert (seen.total_mib, seen.reserved_mib, seen.used_mib) == (24_000, None, 500)


def test_a_driver_may_tell_no_memory_at_all(nvml: Nvml, board: Board) -> None:
    """A GPU without memory information is still listed."""
    board.answer("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED)
    board.answer("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    seen = nvml.read().gpus[0]

    assert (seen.uuid, seen.total_mib, seen.used_mib) == (A, None, None)


def test_a_driver_without_mig_has_whole_gpus(nvml: Nvml, board: Board) -> None:
    """If the MIG mode cannot be queried, the GPU has no slices."""
    board.answer("nvmlDeviceGetMigMode", NOT_SUPPORTED)

    assert [gpu.uuid for gpu in nvml.read().gpus] == [A, B]


def test_a_lost_gpu_costs_nobody_else(nvml: Nvml, board: Board) -> None:
    """A lost GPU is unreadable without affecting the others, also when it is read alone."""
    assert nvml.read_one(A) is not None
    board.lose(A)

    assert nvml.read_one(A) is None
    seen = nvml.read()
    assert [gpu.uuid for gpu in seen.gpus] == [B]
    assert seen.unreadable == ("GPU 0: GPU is lost",)


def test_a_gpu_may_be_lost_while_it_is_read(nvml: Nvml, board: Board) -> None:
    """A GPU lost while it is read is reported by its UUID."""
    board.answer("nvmlDeviceGetMemoryInfo_v2", 15)

    assert nvml.read().lost == {A: "GPU is lost", B: "GPU is lost"}


def test_a_gpu_that_came_back_needs_a_new_session(nvml: Nvml, board: Board) -> None:
    """A GPU that came back is seen only by a later session."""
    board.lose(A)
    nvml.read()
    board.find(A)
    assert nvml.read().find(A) is None

    nvml.renew()

    assert nvml.read().find(A) is not None


def test_errors_are_reported_once(nvml: Nvml, board: Board) -> None:
    """Errors are reported once, with their GPU, number and GPU instance."""
    assert nvml.xids() == []
    board.report(B, 79)
    board.report(A, 94, instance=3)

    assert nvml.xids() == [XidEvent(B, 79), XidEvent(A, 94, 3)]
    assert nvml.xids() == []


def test_a_flood_of_errors_is_taken_in_parts(nvml: Nvml, board: Board) -> None:
    """At most EVENTS_MAX errors are read at once."""
    nvml.xids()
    for _ in range(EVENTS_MAX + 1):
        board.report(A, 13)

    assert [len(nvml.xids()), len(nvml.xids())] == [EVENTS_MAX, 1]


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_a_driver_may_report_no_errors(nvml: Nvml, board: Board, call: str) -> None:
    """A driver without event support reports no errors."""
    board.answer(call, NOT_SUPPORTED)

    assert nvml.xids() == []


def test_no_driver_is_told_from_a_bad_one(board: Board) -> None:
    """A missing driver is distinguished from one that does not match its library."""
    board.init = NO_DRIVER
    board.write()
    with pytest.raises(NoDriver, match="Driver Not Loaded") as absent:
        Nvml().open()
    board.init = WRONG_VERSION
    board.write()
    with pytest.raises(NoDriver, match="version mismatch") as bad:
        Nvml().open()

    assert (absent.value.is_absent, bad.value.is_absent) == (True, False)


def test_a_driver_that_goes_away_is_said(nvml: Nvml, board: Board) -> None:
    """A driver that disappears raises NoDriver at the next read."""
    board.answer("nvmlDeviceGetCount_v2", NO_DRIVER)

    with pytest.raises(NoDriver):
        nvml.read()


def test_closing_twice_does_no_harm(nvml: Nvml) -> None:
    """A second `close` has no effect."""
    nvml.xids()
    nvml.close()
    nvml.close()


def test_a_device_is_found_by_its_uuid() -> None:
    """GPUs and slices are found by UUID; unknown ones are not."""
    slice_ = Reading("MIG-1", "0:0", parent="GPU-a")
    seen = Snapshot("580", (slice_, Reading("GPU-b", "1")), {"GPU-c": "GPU is lost"})

    assert seen.find("MIG-1") is slice_
    assert seen.find("GPU-a") is None
    assert seen.find("GPU-c") is None


SENSES = {
    "memory_utilization": 7,
    "temperature": 61,
    "memory_temperature": 74,
    "power_mw": 412_500,
    "energy_mj": 9_876_543_210,
    "sm_clock": 1980,
    "memory_clock": 2619,
    "ecc_corrected": 3,
    "ecc_uncorrected": 1,
    "ecc_corrected_ever": 30,
    "ecc_uncorrected_ever": 10,
    "pcie_replays": 12,
}
TELEMETRY = Telemetry(0.07, 61, 74, 412.5, 9_876_543_210, 1980, 2619, 3, 1, 30, 10, 12)


def test_sensors_and_counters_are_read(nvml: Nvml, board: Board) -> None:
    """Each has its unit; a reading of one GPU keeps the last ones, as it is about memory."""
    board.sense(A, **SENSES, pci_bus=0x18)
    first = nvml.read().gpus[0]
    assert first.pci_bus == "00000000:18:00.0"
    board.sense(A, energy_mj=9_876_600_000)

    assert first.telemetry == TELEMETRY
    assert nvml.read().gpus[0].telemetry == replace(TELEMETRY, energy_mj=9_876_600_000)
    board.sense(A, energy_mj=9_876_700_000)
    alone = nvml.read_one(A)
    assert alone is not None
    assert alone.telemetry == replace(TELEMETRY, energy_mj=9_876_600_000)
    assert alone.pci_bus == first.pci_bus


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetTemperature", ["temperature_c"]),
        ("nvmlDeviceGetFieldValues", ["memory_temperature_c"]),
        ("nvmlDeviceGetPowerUsage", ["power_w"]),
        ("nvmlDeviceGetTotalEnergyConsumption", ["energy_mj"]),
        ("nvmlDeviceGetClockInfo", ["sm_clock_mhz", "memory_clock_mhz"]),
        ("nvmlDeviceGetPcieReplayCounter", ["pcie_replays"]),
        (
            "nvmlDeviceGetTotalEccErrors",
            ["ecc_corrected", "ecc_uncorrected", "ecc_corrected_ever", "ecc_uncorrected_ever"],
        ),
    ],
)
def test_a_missing_sensor_costs_no_other(
    nvml: Nvml, board: Board, call: str, fields: list[str], code: int
) -> None:
    """A call that fails leaves exactly its own values out."""
    board.sense(A, **SENSES)
    board.answer(call, code)
    seen = nvml.read().gpus[0]

    assert seen.telemetry == replace(TELEMETRY, **dict.fromkeys(fields))
    assert seen.total_mib == 24_000


def test_a_gpu_without_sensors_has_none(nvml: Nvml, board: Board) -> None:
    """Every value is None; a counter that shows the largest number is none either."""
    assert nvml.read().gpus[0].telemetry == Telemetry(memory_utilization=0.0)
    board.sense(A, energy_mj=2**64 - 1, ecc_corrected=2**64 - 1, pcie_replays=5)

    assert nvml.read().gpus[0].telemetry == Telemetry(memory_utilization=0.0, pcie_replays=5)


def test_slices_show_the_sensors_of_their_gpu(nvml: Nvml, board: Board) -> None:
    """The driver has no sensors for slices: each shows those of the whole GPU."""
    board.add(
        Gpu("MIG-1", 10_000, parent=B, instance=1), Gpu("MIG-2", 20_000, parent=B, instance=5)
    )
    board.sense(B, energy_mj=777, power_mw=250_000)
    found = [gpu.telemetry for gpu in nvml.read().gpus[1:]]

    assert found == [Telemetry(0.0, power_w=250.0, energy_mj=777)] * 2
