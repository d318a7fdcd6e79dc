"""The functions as rows of a screen: what fits, the most telling columns first. Pure.

The devices as rows of a screen: memory, use, and the replicas on them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from admin.cli.live.state import TREND_MAX, Picture, seconds
from admin.cli.top.lines import STATES, Line, Span, cut, fit, meter, shown, spark
from admin.text import NONE, duration, get, number

NAME_MIN: Final = 12
TREND_MIN: Final = 8
NEXT: Final = 16

FunctionRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """What a row is drawn with: the picture, this machine's steady clock, the server's (Unix s)."""

    picture: Picture
    now: float
    server_s: float


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Where there is no room for all, those of the highest `rank` are left out."""

    title: str
    width: int
    rank: int
    cell: Callable[[FunctionRow, Moment], tuple[str, str]]
    right: bool = True


def head(columns: Sequence[Column], sort: str) -> Line:
    """The titles; what is sorted by stands out."""
    spans = []
    for column in columns:
        by = column.title.casefold() == sort or (sort == "name" and column.title == "NAME")
        style = "bold underline" if by else "bold"
        spans += [(fit(column.title, column.width, column.right), style), (" ", "")]
    return tuple(spans[:-1])


def row(item: FunctionRow, columns: Sequence[Column], moment: Moment, is_selected: bool) -> Line:
    """One function."""
    spans = []
    for column in columns:
        value, style = column.cell(item, moment)
        spans += [(fit(value, column.width, column.right), style), (" ", "")]
    line = tuple(spans[:-1])
    return (
        tuple((part, f"{style} reverse".strip()) for part, style in line) if is_selected else line
    )


def columns(width: int, longest: int) -> list[Column]:
    """The columns that fit in `width`, where the longest name has `longest` characters."""
    kept = list(_COLUMNS)
    name = max(NAME_MIN, min(longest, width // 3))
    while len(kept) > 1 and _width(kept) + name > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    spare = width - _width(kept) - name
    # A longer trend, then a longer reason, then a still longer trend; names with what is left.
    for title, most in (("TREND", 30), ("NEXT", 48), ("TREND", TREND_MAX)):
        spare -= _grow(kept, title, most, spare)
    name = max(name, min(longest, name + spare))
    return [Column("NAME", name, 0, _name, right=False), *kept]


def _grow(kept: list[Column], title: str, most: int, spare: int) -> int:
    """By how much a column grew, up to `most` columns wide."""
    for at, column in enumerate(kept):
        if column.title == title:
            grown = max(0, min(spare, most - column.width))
            drawn = column.width + grown
            cell = _trend(drawn) if title == "TREND" else column.cell
            kept[at] = replace(column, width=drawn, cell=cell)
            return grown
    return 0


def upcoming(item: FunctionRow, moment: Moment) -> str:
    """What comes next, and when: ready, asleep, or how long a call would wait now."""
    state = item.get("state")
    ready_ms = item.get("ready_in_ms")
    if state == "waking":
        phase = shown(get(item, "phase") or "ready")
        if ready_ms is None:
            return phase
        told_s = moment.picture.facts.told_s.get(str(item["name"]), moment.now)
        left_ms = float(ready_ms) - (_heard_until(moment) - told_s) * 1e3
        return f"{phase} ~{duration(left_ms)}" if left_ms > 0 else f"{phase} …"
    if item.get("sleeps_at_s") and moment.server_s:
        left_s = seconds(item["sleeps_at_s"]) - moment.server_s
        return f"sleeps in {_clock(left_s)}" if left_s > 0 else "goes to sleep"
    if state == "cold" and ready_ms:
        return f"wakes ~{duration(float(ready_ms))}"
    return shown(get(item, "reason")) if state in ("failing", "draining") else ""


def _heard_until(moment: Moment) -> float:
    """Countdowns stand still where nothing is heard."""
    picture, now = moment.picture, moment.now
    return now if picture.is_live(now) else now - picture.age_s(now)


def _clock(left_s: float) -> str:
    for length_s, unit in ((3600.0, "h"), (60.0, "min")):
        if left_s >= 2 * length_s:
            return f"{left_s / length_s:.0f} {unit}"
    return f"{max(1.0, left_s):.0f} s"


def _width(kept: Sequence[Column]) -> int:
    """With a space before each."""
    return sum(column.width + 1 for column in kept)


def _name(item: FunctionRow, _moment: Moment) -> tuple[str, str]:
    return shown(item["name"]), ""


def _state(item: FunctionRow, _moment: Moment) -> tuple[str, str]:
    state = shown(get(item, "state"))
    return state, STATES.get(state, "")


def _ready(item: FunctionRow, _moment: Moment) -> tuple[str, str]:
    return f"{get(item, 'ready')}/{get(item, 'max')}", ""


def _count(field: str, style: str) -> Callable[[FunctionRow, Moment], tuple[str, str]]:
    def cell(item: FunctionRow, _moment: Moment) -> tuple[str, str]:
        value = seconds(item.get(field))
        return (number(value) if value else NONE), style if value else "bright_black"

    return cell


def _milliseconds(field: str) -> Callable[[FunctionRow, Moment], tuple[str, str]]:
    def cell(item: FunctionRow, _moment: Moment) -> tuple[str, str]:
        value = item.get(field)
        if value is None:
            return NONE, "bright_black"
        return duration(seconds(value)), ""

    return cell


def _next(item: FunctionRow, moment: Moment) -> tuple[str, str]:
    return upcoming(item, moment), ""


def _trend(width: int) -> Callable[[FunctionRow, Moment], tuple[str, str]]:
    def cell(item: FunctionRow, moment: Moment) -> tuple[str, str]:
        rates = moment.picture.trends.get(str(item["name"]), ())
        return spark(rates, width), "cyan"

    return cell


_COLUMNS: Final = (
    Column("STATE", 8, 1, _state, right=False),
    Column("READY", 5, 3, _ready),
    Column("HELD", 5, 4, _count("held", "yellow")),
    Column("IN FL", 5, 6, _count("in_flight", "cyan")),
    Column("RATE", 6, 5, _count("rate", "")),
    Column("P50", 7, 8, _milliseconds("p50_ms")),
    Column("P95", 7, 7, _milliseconds("p95_ms")),
    Column("NEXT", NEXT, 2, _next, right=False),
    Column("TREND", TREND_MIN, 9, _trend(TREND_MIN)),
)


DeviceRow = dict[str, Any]

METER: Final = 8
BUSY: Final = 5
ROOMY: Final = 90
"""Columns from which on there is a bar for use, too."""
ID_MAX: Final = 24
_GIB: Final = 1024
_DIGITS: Final = re.compile(r"(\d+)")


def rows(
    devices: Mapping[str, DeviceRow],
    replicas: Mapping[str, Sequence[DeviceRow]],
    room: int,
    width: int,
) -> list[Line]:
    """At most `room` lines; where that is too few, what is in use comes first and the rest is
    counted. `replicas` are by device."""
    ordered = sorted(devices.values(), key=lambda each: _natural(str(each["id"])))
    if len(ordered) > room:
        ordered.sort(key=lambda each: each.get("state") == "free" and each["id"] not in replicas)
    left_out = len(ordered) - room
    kept = ordered if left_out <= 0 else ordered[: max(0, room - 1)]
    longest = min(ID_MAX, max((len(str(each["id"])) for each in kept), default=0))
    memory = max((len(_memory_text(each)) for each in kept), default=0)
    lines = [
        cut((*_own(each, longest, memory, width), *_replicas(replicas.get(each["id"], ()))), width)
        for each in kept
    ]
    if left_out > 0 and room:
        lines.append(((f"… and {len(ordered) - len(kept)} more devices", "dim"),))
    return lines


def _own(device: DeviceRow, longest: int, memory: int, width: int) -> tuple[Span, ...]:
    """A device itself: "cpu:0 ███▌ 1.2/16.0 GiB busy █▌ 30% taken"."""
    state, reason = shown(get(device, "state")), shown(get(device, "reason"))
    whole = _whole(device)
    share = _taken(device) / whole if whole else 0.0
    return (
        (fit(shown(device["id"]), longest), ""),
        (" ", ""),
        (meter(share, METER), "blue on bright_black" if whole else ""),
        (f" {_memory_text(device):<{memory}} ", ""),
        *_busy(device, width < ROOMY),
        (f" {state:<5}", STATES.get(state, "")),
        (f" {reason}" if reason and state != "free" else "", "red"),
    )


def _taken(device: DeviceRow) -> float:
    """What is in use of it, as the GPU's driver sees it, else what replicas are charged with."""
    used = device.get("used_mib")
    return seconds(device.get("charged_mib")) if used is None else seconds(used)


def _whole(device: DeviceRow) -> float:
    return seconds(device.get("total_mib")) or seconds(device.get("memory_mib"))


def _memory_text(device: DeviceRow) -> str:
    whole = _whole(device)
    return f"{_taken(device) / _GIB:.1f}/{whole / _GIB:.1f} GiB" if whole else ""


def _busy(device: DeviceRow, is_narrow: bool) -> tuple[Span, ...]:
    """The share of time with a model running."""
    busy = device.get("busy")
    figure = f"{NONE:>4}" if busy is None else f"{seconds(busy):>4.0%}"
    if is_narrow or busy is None:
        blank = "" if is_narrow else " " * (BUSY + 1)
        return ((f"busy {blank}{figure}", "" if busy is not None else "bright_black"),)
    drawn = meter(seconds(busy), BUSY)
    return (("busy ", ""), (drawn, "green on bright_black"), (f" {figure}", ""))


def _replicas(replicas: Sequence[DeviceRow]) -> tuple[Span, ...]:
    return tuple(span for replica in replicas for span in _replica(replica))


def _replica(replica: DeviceRow) -> tuple[Span, ...]:
    """What a replica is there for, and its state."""
    function, revision = get(replica, "function"), get(replica, "revision")
    ref = revision if "@" in revision else f"{function}@{revision}"
    if not function:
        ref = "standby"
    elif replica.get("role") == "trial":
        ref = f"{function} (trial)"
    state = shown(get(replica, "state"))
    parts = (("  ", ""), (shown(ref), ""))
    return parts if ref == state else (*parts, (f" {state}", STATES.get(state, "")))


def _natural(id: str) -> list[tuple[int, str]]:
    """cpu:2 before cpu:10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(id) if part
    ]
