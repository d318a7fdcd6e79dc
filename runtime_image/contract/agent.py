"""Reports of a host's agent: GPUs, memory, disk and clocks of a machine that the manager cannot
read.

The agent is a container of the runtime image. Its control link is that of a replica; REPORT has a
`HostReport` as JSON body.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_type_hints

from runtime_image.contract.gpus import (
    Ancestor,
    GpuProcess,
    Link,
    Reading,
    Snapshot,
    Telemetry,
    XidEvent,
)

ENGINE: Final = "agent"
"""The engine of agents in their records."""
REPORT_S: Final = 2.0
"""Seconds between two reports; one is also sent with the answer to each PING."""
XIDS_MAX: Final = 64
"""Max errors of GPUs in a report: the last ones, so that a lost report loses none of them."""
GPUS_MAX: Final = 256
"""Max GPUs and MIG slices in a report."""
LINKS_MAX: Final = 1024
"""Max connections of GPUs in a report: those of 45 GPUs."""
PROCESSES_MAX: Final = 1024
"""Max processes in a report, over all GPUs."""
TEXT_MAX: Final = 500
"""Max characters of a text in a report."""
NUMBER_MAX: Final = 2.0**53


@dataclass(frozen=True, slots=True)
class HostReport:
    """State of a host at one moment; sizes in MiB.

    `number` is 1 for the first report of an agent. `gpus` is None if the driver cannot be used, for
    the reason `no_driver`; `is_absent`: no driver is installed or loaded. `xids` are the last
    errors of GPUs, each with its number since the agent's start, 1 for the first. `disk_free_mib`
    and `disk_mib` are those of the file system with fngate's folder. `wall_s` is Unix time,
    `monotonic_s` CLOCK_MONOTONIC of the host.
    """

    number: int
    gpus: Snapshot | None
    no_driver: str
    is_absent: bool
    xids: tuple[tuple[int, XidEvent], ...]
    memory_mib: float
    memory_free_mib: float
    cores: int
    disk_mib: float
    disk_free_mib: float
    wall_s: float
    monotonic_s: float


def to_json(report: HostReport) -> dict[str, Any]:
    """Return a report as plain JSON data; `from_json` is its inverse."""
    return asdict(report)


def from_json(data: Any) -> HostReport:
    """Rebuild a report from `to_json`. Raises ValueError with what was expected and what came."""
    fields = _fields(data, HostReport)
    gpus = fields["gpus"]
    fields["gpus"] = None if gpus is None else _snapshot(gpus)
    fields["xids"] = tuple(map(_numbered, _list(fields["xids"], XIDS_MAX)))
    return HostReport(**fields)


def _snapshot(data: Any) -> Snapshot:
    fields = _fields(data, Snapshot)
    gpus = tuple(map(_gpu, _list(fields["gpus"], GPUS_MAX)))
    if sum(len(gpu.processes or ()) for gpu in gpus) > PROCESSES_MAX:
        raise ValueError(f"expected at most {PROCESSES_MAX} processes")
    lost = fields["lost"]
    if not isinstance(lost, dict) or len(lost) > GPUS_MAX:
        raise _bad(f"at most {GPUS_MAX} reasons by GPU", lost)
    return Snapshot(
        fields["driver"],
        gpus,
        {_text(uuid): _text(reason) for uuid, reason in lost.items()},
        tuple(map(_text, _list(fields["unreadable"], GPUS_MAX))),
        tuple(map(_link, _list(fields["links"], LINKS_MAX))),
    )


def _link(data: Any) -> Link:
    fields = _fields(data, Link)
    if (level := fields["ancestor"]) is not None:
        if _count(level) not in list(Ancestor):
            raise _bad(f"one of {', '.join(str(one.value) for one in Ancestor)}", level)
        fields["ancestor"] = Ancestor(level)
    return Link(**fields)


def _gpu(data: Any) -> Reading:
    fields = _fields(data, Reading)
    if fields["capability"] is not None:
        major, minor = map(_count, _list(fields["capability"], 2, least=2))
        fields["capability"] = major, minor
    if fields["processes"] is not None:
        processes = _list(fields["processes"], PROCESSES_MAX)
        fields["processes"] = tuple(
            GpuProcess(**_fields(process, GpuProcess)) for process in processes
        )
    if fields["telemetry"] is not None:
        fields["telemetry"] = Telemetry(**_fields(fields["telemetry"], Telemetry))
    return Reading(**fields)


def _numbered(data: Any) -> tuple[int, XidEvent]:
    number, event = _list(data, 2, least=2)
    return _count(number), XidEvent(**_fields(event, XidEvent))


def _fields(data: Any, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass, of which all texts and numbers are checked."""
    hints = get_type_hints(kind)
    if not isinstance(data, dict) or data.keys() != hints.keys():
        raise _bad(f"an object with {', '.join(hints)}", data)
    return {
        name: _value(data[name], get_args(hint) if isinstance(hint, UnionType) else (hint,))
        for name, hint in hints.items()
    }


def _value(value: Any, types: tuple[Any, ...]) -> Any:
    """Return a text or number of one of these types; other values are for the caller to check."""
    if value is None and NoneType in types:
        return None
    if str in types:
        return _text(value)
    if int in types:
        return _count(value)
    if float in types:
        return _number(value)
    if bool in types and not isinstance(value, bool):
        raise _bad("true or false", value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise _bad(f"a text of at most {TEXT_MAX} characters", value)
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int):
        raise _bad("an integer", value)
    return int(_number(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad("a number", value)
    if not 0 <= value <= NUMBER_MAX or math.isnan(value):
        raise _bad("a number of 0 or more", value)
    return value


def _list(value: Any, most: int, *, least: int = 0) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise _bad(f"a list of {least} to {most}", value)
    return value


def _bad(expected: str, got: Any) -> ValueError:
    return ValueError(f"malformed report: expected {expected}, got {repr(got)[:100]}")
