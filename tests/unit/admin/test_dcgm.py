"""Tests of the GPUs' metrics under the names of the DCGM exporter."""

from __future__ import annotations

from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from admin.dcgm import MEMORY, WHOLE, dcgm_families
from admin.metrics import Source
from pool_manager.core.state import Device
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from runtime_image.contract.gpus import Reading, Telemetry

TELEMETRY = Telemetry(0.07, 61, 74, 412.5, 9_876_543_210, 1980, 2619, 3, 1, 30, 10, 12)
READING = Reading(
    *("GPU-a", "0", "NVIDIA H200", 1000.0, 600.0, 100.0),
    utilization=0.93,
    telemetry=TELEMETRY,
    pci_bus="00000000:18:00.0",
)


def occupancy(
    reading: Reading, host: str = "local", xids: dict[int, int] | None = None
) -> Occupancy:
    """Return a GPU with this reading."""
    device = Device(f"{host}/{reading.uuid}", "cuda", host=host)
    view = GpuView(None, "0", None, None, None, None, 0.0, reading=reading, xids=xids or {})
    return Occupancy(device, "free", "", (), 0.0, view)


SLOT = Occupancy(Device("cpu:0", "cpu"), "free", "", (), 0.0, None)


def samples(*devices: Occupancy) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and values by name, as a scraper of the text format reads them."""
    families = Source(lambda: list(devices), dcgm_families("box7"))
    registry = CollectorRegistry()
    registry.register(cast("Any", families))
    assert openmetrics.generate_latest(registry).endswith(b"# EOF\n")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_values_have_the_names_and_units_of_the_exporter() -> None:
    """Percent, MHz, degrees, watts, millijoules and MiB."""
    found = samples(occupancy(READING, xids={31: 4, 79: 1}), SLOT)

    assert {name.removeprefix("DCGM_FI_DEV_"): one[0][1] for name, one in found.items()} == {
        "GPU_UTIL": 93,
        "MEM_COPY_UTIL": 7,
        "FB_USED": 600,
        "FB_FREE": 300,
        "FB_RESERVED": 100,
        "GPU_TEMP": 61,
        "MEMORY_TEMP": 74,
        "POWER_USAGE": 412.5,
        "TOTAL_ENERGY_CONSUMPTION": 9_876_543_210,
        "XID_ERRORS": 79,
        "PCIE_REPLAY_COUNTER": 12,
        "SM_CLOCK": 1980,
        "MEM_CLOCK": 2619,
        "ECC_SBE_VOL_TOTAL": 3,
        "ECC_DBE_VOL_TOTAL": 1,
        "ECC_SBE_AGG_TOTAL": 30,
        "ECC_DBE_AGG_TOTAL": 10,
    }
    assert len(found) == len(MEMORY) + len(WHOLE)
    for name, rows in found.items():
        labels = {
            "gpu": "0",
            "UUID": "GPU-a",
            "pci_bus_id": "00000000:18:00.0",
            "device": "nvidia0",
            "modelName": "NVIDIA H200",
            "Hostname": "box7",
            "host": "local",
        }
        more = {"err_code": "79"} if name == "DCGM_FI_DEV_XID_ERRORS" else {}
        assert [one for one, _ in rows] == [labels | more]


def test_errors_that_are_counted_together_do_not_hide_the_last_one() -> None:
    """They have the number 0, which would say that there was no error."""
    found = samples(occupancy(READING, xids={31: 1, 79: 1, 0: 5}))

    assert [value for _, value in found["DCGM_FI_DEV_XID_ERRORS"]] == [79]


def test_a_missing_value_has_no_sample() -> None:
    """A GPU that reports nothing has only the last error, which is none."""
    found = samples(occupancy(Reading("GPU-b", "1")))

    assert {name: [value for _, value in rows] for name, rows in found.items()} == {
        "DCGM_FI_DEV_XID_ERRORS": [0]
    }


def test_a_gpu_of_another_host_is_labelled_with_it() -> None:
    """Its Hostname is the host's name, so that equal GPUs of two hosts stay apart."""
    found = samples(occupancy(READING), occupancy(READING, "gpu2"))

    assert [
        (labels["Hostname"], labels["host"]) for labels, _ in found["DCGM_FI_DEV_GPU_TEMP"]
    ] == [("box7", "local"), ("gpu2", "gpu2")]


def test_slices_have_memory_and_their_gpu_has_the_rest() -> None:
    """Sensors are those of the whole GPU and are there once."""
    one, two = (
        Reading(
            *(f"MIG-{number}", f"3:{number}", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 100.0, 40.0),
            parent="GPU-c",
            instance=7 + number,
            telemetry=TELEMETRY,
        )
        for number in (0, 1)
    )
    found = samples(occupancy(one), occupancy(two))
    whole = {
        "gpu": "3",
        "UUID": "GPU-c",
        "pci_bus_id": "",
        "device": "nvidia3",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "box7",
        "host": "local",
    }

    assert found["DCGM_FI_DEV_POWER_USAGE"] == [(whole, 412.5)]
    assert found["DCGM_FI_DEV_FB_FREE"] == [
        ({**whole, "GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "7"}, 60),
        ({**whole, "GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "8"}, 60),
    ]
    assert "DCGM_FI_DEV_GPU_UTIL" not in found
