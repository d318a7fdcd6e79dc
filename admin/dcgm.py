"""Metric families of GPUs under the names of NVIDIA's DCGM exporter, read from NVML.

Names, units and labels are those of `etc/default-counters.csv` in github.com/NVIDIA/dcgm-exporter
up to release 4.8: percent, MHz, MiB, millijoules. Release 4.9 renames many and changes units.
Counters are of type "unknown" here, as their names lack the `_total` that OpenMetrics demands;
`rate` and `increase` do not depend on the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from registry.model.hosts import other_host
from runtime_image.contract.gpus import Reading, Telemetry

PERCENT: Final = 100
MIG: Final = " MIG "
"""Ends the GPU's own name in the name of a slice."""


class _Family(NamedTuple):
    """A family: its name behind `DCGM_FI_DEV_`, type and help text, and where its value is."""

    name: str
    kind: str
    text: str
    of: Callable[[GpuView, Reading, Telemetry], float | None]


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * PERCENT, 3)


def _free_mib(reading: Reading) -> float | None:
    if reading.total_mib is None or reading.used_mib is None:
        return None
    return max(0.0, reading.total_mib - reading.used_mib - (reading.reserved_mib or 0.0))


def _last_xid(view: GpuView) -> float:
    """Return the last error that has a number: those that are counted together have 0, as none."""
    return float(next(filter(None, reversed(view.xids)), 0))


MEMORY: Final = (
    _Family("FB_USED", "gauge", "Memory in use (in MiB).", lambda _, r, __: r.used_mib),
    _Family("FB_FREE", "gauge", "Free memory (in MiB).", lambda _, r, __: _free_mib(r)),
    _Family(
        "FB_RESERVED", "gauge", "Memory of the driver (in MiB).", lambda _, r, __: r.reserved_mib
    ),
)
"""Families with a sample of each slice; the others have one of each whole GPU."""
XID: Final = _Family(
    "XID_ERRORS",
    "gauge",
    "Last XID error since the start of this server, 0 for none.",
    lambda v, _, __: _last_xid(v),
)
WHOLE: Final = (
    _Family("GPU_UTIL", "gauge", "Utilisation (in %).", lambda _, r, __: _percent(r.utilization)),
    _Family(
        "MEM_COPY_UTIL",
        "gauge",
        "Utilisation of memory (in %).",
        lambda _, __, t: _percent(t.memory_utilization),
    ),
    _Family("SM_CLOCK", "gauge", "Clock of the SMs (in MHz).", lambda _, __, t: t.sm_clock_mhz),
    _Family(
        "MEM_CLOCK", "gauge", "Clock of the memory (in MHz).", lambda _, __, t: t.memory_clock_mhz
    ),
    _Family("GPU_TEMP", "gauge", "Temperature (in C).", lambda _, __, t: t.temperature_c),
    _Family(
        "MEMORY_TEMP",
        "gauge",
        "Temperature of the memory (in C).",
        lambda _, __, t: t.memory_temperature_c,
    ),
    _Family("POWER_USAGE", "gauge", "Power draw (in W).", lambda _, __, t: t.power_w),
    _Family(
        "TOTAL_ENERGY_CONSUMPTION",
        "unknown",
        "Energy since the load of the driver (in mJ).",
        lambda _, __, t: t.energy_mj,
    ),
    _Family(
        "PCIE_REPLAY_COUNTER", "unknown", "Retries over PCIe.", lambda _, __, t: t.pcie_replays
    ),
    XID,
    _Family(
        "ECC_SBE_VOL_TOTAL",
        "unknown",
        "Corrected memory errors since the load of the driver.",
        lambda _, __, t: t.ecc_corrected,
    ),
    _Family(
        "ECC_DBE_VOL_TOTAL",
        "unknown",
        "Uncorrected memory errors since the load of the driver.",
        lambda _, __, t: t.ecc_uncorrected,
    ),
    _Family(
        "ECC_SBE_AGG_TOTAL",
        "unknown",
        "Corrected memory errors in the GPU's life.",
        lambda _, __, t: t.ecc_corrected_ever,
    ),
    _Family(
        "ECC_DBE_AGG_TOTAL",
        "unknown",
        "Uncorrected memory errors in the GPU's life.",
        lambda _, __, t: t.ecc_uncorrected_ever,
    ),
)


Gpu = tuple[GpuView, Reading, dict[str, str]]
"""A GPU or a slice, and its labels."""


def dcgm_families(hostname: str) -> Callable[[list[Occupancy]], Iterable[Metric]]:
    """Return what shows the families of GPUs; `hostname` is that of this machine.

    The label `Hostname` of other hosts is their name in `fnctl host ls`, which the label `host`
    always has. A value that a driver does not report has no sample.
    """

    def show(occupancies: list[Occupancy]) -> Iterable[Metric]:
        found: list[Gpu] = [
            (one.gpu, one.gpu.reading, _labels(one.gpu.reading, one.device.host, hostname))
            for one in occupancies
            if one.gpu is not None and one.gpu.reading is not None
        ]
        whole: dict[tuple[str, str], Gpu] = {}
        for gpu in found:
            whole.setdefault((gpu[2]["host"], gpu[2]["UUID"]), gpu)
        for family in MEMORY:
            metric = _metric(family)
            for view, reading, labels in found:
                own = {**labels, **_slice_labels(reading)}
                _add(metric, own, family.of(view, reading, reading.telemetry or Telemetry()))
            yield metric
        for family in WHOLE:
            metric = _metric(family)
            for view, reading, labels in whole.values():
                value = family.of(view, reading, reading.telemetry or Telemetry())
                own = {**labels, "err_code": f"{value:g}"} if family is XID else labels
                _add(metric, own, value)
            yield metric

    return show


def _labels(reading: Reading, host: str, hostname: str) -> dict[str, str]:
    index = reading.index.partition(":")[0]
    return {
        "gpu": index,
        "UUID": reading.parent or reading.uuid,
        "pci_bus_id": reading.pci_bus or "",
        "device": f"nvidia{index}",
        "modelName": (reading.name or "").partition(MIG)[0],
        "Hostname": other_host(host) or hostname,
        "host": host,
    }


def _metric(family: _Family) -> Metric:
    return Metric(f"DCGM_FI_DEV_{family.name}", family.text, family.kind)


def _add(metric: Metric, labels: dict[str, str], value: float | None) -> None:
    if value is not None:
        metric.add_sample(metric.name, labels, value)


def _slice_labels(reading: Reading) -> dict[str, str]:
    """Return the labels of a slice: its GPU instance, and its profile, such as 1g.10gb."""
    if not reading.parent:
        return {}
    profile = (reading.name or "").partition(MIG)[2]
    instance = "" if reading.instance is None else str(reading.instance)
    return {"GPU_I_PROFILE": profile, "GPU_I_ID": instance}
