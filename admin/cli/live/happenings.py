"""Events worth a line of their own: decisions, cold starts, operations, errors. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from admin.cli.text import duration, get, one_line, plain

TEXT_MAX: Final = 300
"""Characters kept of a happening."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened at `at_s` (Unix seconds) to `function`, "" for none.

    `is_bad`: somebody may have to do something about it. `operation` is the id of the one it is
    about, "" for none: what is told of it later takes this one's place.
    """

    at_s: float
    kind: str
    function: str
    text: str
    is_bad: bool = False
    operation: str = ""


def happening(kind: str, data: dict[str, Any]) -> Happening | None:
    """What an event of this kind tells, None where it only changes the state."""
    make = _MAKERS.get(kind)
    return make(data) if make else None


def _decision(data: dict[str, Any]) -> Happening:
    return Happening(seconds(data.get("at_s")), "decision", name(data), _short(get(data, "text")))


def _cold_start(data: dict[str, Any]) -> Happening:
    outcome = get(data, "outcome")
    took = duration(seconds(data.get("total_ms")))
    text = f"revision {get(data, 'number')} {outcome} after {took} on {get(data, 'device_kind')}"
    at_s = seconds(data.get("at_s"))
    return Happening(at_s, "cold start", name(data), _short(text), outcome != "ready")


def _operation(data: dict[str, Any]) -> Happening:
    state = get(data, "state")
    text = f"{get(data, 'kind')} {state}"
    if state == "running":
        text = f"{get(data, 'kind')}: {get(data, 'phase')}"
    if why := get(data, "error", "detail"):
        text = f"{text}: {why}"
    at_s = seconds(data.get("ended_s")) or seconds(data.get("created_s"))
    is_bad = state == "failed"
    return Happening(at_s, "operation", name(data), _short(text), is_bad, get(data, "id"))


def _error(data: dict[str, Any]) -> Happening:
    count = int(seconds(data.get("count")) or 1)
    times = f"{count} x " if count > 1 else ""
    where = f" ({get(data, 'replica')})" if data.get("replica") else ""
    text = f"{times}{get(data, 'code')}: {get(data, 'detail')}{where}"
    return Happening(seconds(data.get("at_s")), "error", name(data), _short(text), True)


_MAKERS: Final[dict[str, Callable[[dict[str, Any]], Happening]]] = {
    "decision": _decision,
    "cold_start": _cold_start,
    "operation": _operation,
    "error": _error,
}


def name(data: dict[str, Any]) -> str:
    """The function an event is about."""
    return plain(get(data, "function") or get(data, "name"))


def seconds(value: Any) -> float:
    """A number that may be missing or be none; 0.0 then."""
    return float(value) if isinstance(value, int | float) else 0.0


def _short(text: str) -> str:
    return one_line(plain(text))[:TEXT_MAX]
