"""What an answer says of its own making, read off its Server-Timing header (W3C Server Timing)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from admin.cli.text import duration, number
from runtime_image.contract.control import PHASES

HEADER_MAX: Final = 8192
"""Characters looked at."""
_METRIC: Final = re.compile(
    r"""\s*([\w.!#$%&'*+^`|~-]+)((?:\s*;\s*[\w-]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s",;]*))*)\s*(?:,|$)"""
)
_PARAMETER: Final = re.compile(r"""([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*))""")
_LEAST_MS: Final = 0.0005
"""Less is shown as nothing: the header has three decimals."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where the time went, in milliseconds. `cold` is "digits@3 on cpu:0" after a cold start."""

    cold: str = ""
    replica: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    """The phases of the cold start."""
    times: dict[str, float] = field(default_factory=dict)
    """The phases of this request."""

    @property
    def cold_ms(self) -> float:
        """The whole cold start."""
        return sum(self.phases.values())

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain JSON data."""
        return {
            "cold": bool(self.cold),
            "started": self.cold,
            "replica": self.replica,
            "cold_start_ms": round(self.cold_ms, 3) if self.cold else None,
            "phases_ms": self.phases,
            "times_ms": self.times,
        }


def read(header: str) -> Receipt:
    """The receipt in a Server-Timing header; of a broken one, what can be read of it."""
    cold = replica = ""
    phases: dict[str, float] = {}
    times: dict[str, float] = {}
    metrics = [(m[1], _parameters(m[2])) for m in _METRIC.finditer(header[:HEADER_MAX])]
    is_cold = any(name == "cold" for name, _ in metrics)
    for name, parameters in metrics:
        ms = _ms(parameters.get("dur", ""))
        if name == "cold":
            cold = parameters.get("desc", "") or "cold"
        elif name == "replica":
            replica = parameters.get("desc", "")
        elif ms is not None:
            # The first run of a warm replica may be a request's own: it is no cold start then.
            into = phases if is_cold and name in PHASES else times
            into.setdefault(name, ms)
    return Receipt(cold, replica, phases, times)


def render(receipt: Receipt) -> str:
    """One line: "cold start 183 ms: start 12 · load 9 | queue 180 ms" or "warm: queue 0.1 ms"."""
    times = _list(receipt.times)
    if not receipt.cold:
        return f"warm: {times}" if times else ""
    cold = f"cold start {duration(receipt.cold_ms)}: {_list(receipt.phases, unit='')}"
    return f"{cold} | {times}" if times else cold


def _list(times: dict[str, float], unit: str = " ms") -> str:
    shown = [f"{name} {number(ms)}" for name, ms in times.items() if ms >= _LEAST_MS]
    return " · ".join(shown) + unit if shown else ""


def _parameters(text: str) -> dict[str, str]:
    return {
        match[1].lower(): re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        for match in _PARAMETER.finditer(text)
    }


def _ms(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
