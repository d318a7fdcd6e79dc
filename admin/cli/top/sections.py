"""Functions and devices as rows of `fnctl top`: cells, and the columns that fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from admin.cli.live.state import TREND_MAX, LiveState, Placed
from admin.cli.top.lines import STATES, Line, Span, cut, fit, meter, shown, spark
from admin.documents.functions import FunctionRow
from admin.documents.server import DeviceRow
from admin.text import NONE, duration, number
from runtime_image.contract.server import ENGINE

NAME_MIN: Final = 12
TREND_MIN: Final = 8
NEXT: Final = 16
METER: Final = 8
BUSY: Final = 5
ROOMY: Final = 90
"""Min columns for a bar that shows use."""
ID_MAX: Final = 24
_GIB: Final = 1024
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class RowContext:
    """Input of cells: the state, this machine's monotonic clock, the server's clock (Unix s)."""

    live: LiveState
    now: float
    server_s: float


Cell = Callable[[FunctionRow, RowContext], Span]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Columns with the highest `rank` are dropped first if the screen is too narrow."""

    title: str
    width: int
    rank: int
    cell: Cell
    right: bool = True


def head(columns: Sequence[Column], sort: str) -> Line:
    """Return the titles; the title of the sort column is underlined."""
    spans = []
    for column in columns:
        by = column.title.casefold() == sort or (sort == "name" and column.title == "NAME")
        style = "bold underline" if by else "bold"
        spans += [(fit(column.title, column.width, column.right), style), (" ", "")]
    return tuple(spans[:-1])


def row(
    item: FunctionRow, columns: Sequence[Column], context: RowContext, is_selected: bool
) -> Line:
    """Return the row of one function."""
    spans = []
    for column in columns:
        value, style = column.cell(item, context)
        spans += [(fit(value, column.width, column.right), style), (" ", "")]
    line = tuple(spans[:-1])
    return (
        tuple((part, f"{style} reverse".strip()) for part, style in line) if is_selected else line
    )


def columns(width: int, names: Sequence[str]) -> list[Column]:
    """Return the columns that fit in `width` beside these names."""
    kept, longest = list(_COLUMNS), max(map(len, names), default=0)
    name = max(NAME_MIN, min(longest, width // 3))
    while len(kept) > 1 and _width(kept) + name > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    spare = width - _width(kept) - name
    # Spare width goes to the trend, the next change, the trend again, and then to the names.
    for title, most in (("TREND", 30), ("NEXT", 48), ("TREND", TREND_MAX)):
        spare -= _grow(kept, title, most, spare)
    name = max(name, min(longest, name + spare))
    return [Column("NAME", name, 0, _name, right=False), *kept]


def _grow(kept: list[Column], title: str, most: int, spare: int) -> int:
    """Widen a column up to `most` characters; return its growth."""
    for at, column in enumerate(kept):
        if column.title == title:
            grown = max(0, min(spare, most - column.width))
            drawn = column.width + grown
            cell = _trend(drawn) if title == "TREND" else column.cell
            kept[at] = replace(column, width=drawn, cell=cell)
            return grown
    return 0


def upcoming(item: FunctionRow, context: RowContext) -> str:
    """Return the next change and its time: ready, asleep, or how long a call would wait now; of a
    long start, what is waited for. A server stays awake while exchanges are open, which may take
    long: their number is shown."""
    state, ready_ms = item.state, item.ready_in_ms
    if state == "waking" and item.awaited:
        return shown(item.awaited)
    if state == "waking":
        phase = shown(item.phase or "ready")
        if ready_ms is None:
            return phase
        received_s = context.live.resources.received_s.get(item.name, context.now)
        left_ms = ready_ms - (_last_event_s(context) - received_s) * 1e3
        return f"{phase} ~{duration(left_ms)}" if left_ms > 0 else f"{phase} …"
    if item.sleeps_at_s and context.server_s:
        left_s = item.sleeps_at_s - context.server_s
        return f"sleeps in {_clock(left_s)}" if left_s > 0 else "goes to sleep"
    if state == "warm" and item.engine == ENGINE and item.in_flight:
        return f"{number(item.in_flight)} open"
    if state in ("cold", "parked") and ready_ms:
        return f"wakes ~{duration(ready_ms)}"
    return shown(item.reason) if state in ("failing", "draining") else ""


def _last_event_s(context: RowContext) -> float:
    """Return the time of the last event if the state is old: countdowns stop there."""
    live, now = context.live, context.now
    return now if live.is_live(now) else now - live.age_s(now)


def _clock(left_s: float) -> str:
    for length_s, unit in ((3600.0, "h"), (60.0, "min")):
        if left_s >= 2 * length_s:
            return f"{left_s / length_s:.0f} {unit}"
    return f"{max(1.0, left_s):.0f} s"


def _width(kept: Sequence[Column]) -> int:
    """Return the total width, with a space before each column."""
    return sum(column.width + 1 for column in kept)


def _name(item: FunctionRow, _context: RowContext) -> Span:
    return shown(item.name), ""


def _state(item: FunctionRow, _context: RowContext) -> Span:
    is_troubled = item.trouble or item.golden == "wrong"
    return item.state, STATES["failing" if is_troubled else item.state]


def _ready(item: FunctionRow, _context: RowContext) -> Span:
    return f"{item.ready}/{item.max}", ""


def _count(read: Callable[[FunctionRow], float | None], style: str) -> Cell:
    def cell(item: FunctionRow, _context: RowContext) -> Span:
        value = read(item)
        return (number(value), style) if value else (NONE, "bright_black")

    return cell


def _milliseconds(read: Callable[[FunctionRow], float | None]) -> Cell:
    def cell(item: FunctionRow, _context: RowContext) -> Span:
        value = read(item)
        return (NONE, "bright_black") if value is None else (duration(value), "")

    return cell


def _next(item: FunctionRow, context: RowContext) -> Span:
    return upcoming(item, context), ""


def _trend(width: int) -> Cell:
    return lambda item, context: (spark(context.live.trends.get(item.name, ()), width), "cyan")


_COLUMNS: Final = (
    Column("STATE", 8, 1, _state, right=False),
    Column("READY", 5, 3, _ready),
    Column("HELD", 5, 4, _count(lambda item: item.held, "yellow")),
    Column("IN FL", 5, 6, _count(lambda item: item.in_flight, "cyan")),
    Column("RATE", 6, 5, _count(lambda item: item.rate, "")),
    Column("P50", 7, 8, _milliseconds(lambda item: item.p50_ms)),
    Column("P95", 7, 7, _milliseconds(lambda item: item.p95_ms)),
    Column("NEXT", NEXT, 2, _next, right=False),
    Column("TREND", TREND_MIN, 9, _trend(TREND_MIN)),
)


def short(id: str) -> str:
    """Return a device's id without its host."""
    return id.partition("/")[2] or id


def rows(
    devices: Iterable[DeviceRow], replicas: Mapping[str, Sequence[Placed]], room: int, width: int
) -> list[Line]:
    """Return the devices of a host on at most `room` lines. If there are more, devices in use come
    first and the others are only counted. `replicas` are by device."""
    ordered = sorted(devices, key=lambda one: _natural(one.id))
    if len(ordered) > room:
        ordered.sort(key=lambda one: one.state == "free" and one.id not in replicas)
    left_out = len(ordered) - room
    kept = ordered if left_out <= 0 else ordered[: max(0, room - 1)]
    longest = min(ID_MAX, max((len(short(one.id)) for one in kept), default=0))
    memory = max((len(_memory_text(one)) for one in kept), default=0)
    lines = [
        cut((*_own(one, longest, memory, width), *_replicas(replicas.get(one.id, ()))), width)
        for one in kept
    ]
    if left_out > 0 and room:
        lines.append(((f"… and {len(ordered) - len(kept)} more devices", "dim"),))
    return lines


def _own(device: DeviceRow, longest: int, memory: int, width: int) -> tuple[Span, ...]:
    """Render the device itself: "cpu:0 ███▌ 1.2/16.0 GiB busy █▌ 30% taken"."""
    state, reason = shown(device.state), shown(device.reason)
    whole = _whole(device)
    share = _taken(device) / whole if whole else 0.0
    return (
        (fit(shown(short(device.id)), longest), ""),
        (" ", ""),
        (meter(share, METER), "blue on bright_black" if whole else ""),
        (f" {_memory_text(device):<{memory}} ", ""),
        *_busy(device.busy, width < ROOMY),
        (f" {state:<5}", STATES.get(state, "")),
        (f" {reason}" if reason and state != "free" else "", "red"),
    )


def _taken(device: DeviceRow) -> int:
    """Return the MiB in use as the GPU's driver reports them, else the MiB charged to replicas."""
    return device.charged_mib if device.used_mib is None else device.used_mib


def _whole(device: DeviceRow) -> int:
    return device.total_mib or device.memory_mib


def _memory_text(device: DeviceRow) -> str:
    whole = _whole(device)
    return f"{_taken(device) / _GIB:.1f}/{whole / _GIB:.1f} GiB" if whole else ""


def _busy(busy: float | None, is_narrow: bool) -> tuple[Span, ...]:
    """Render the share of time in which a model runs."""
    figure = f"{NONE:>4}" if busy is None else f"{busy:>4.0%}"
    if is_narrow or busy is None:
        blank = "" if is_narrow else " " * (BUSY + 1)
        return ((f"busy {blank}{figure}", "" if busy is not None else "bright_black"),)
    return (("busy ", ""), (meter(busy, BUSY), "green on bright_black"), (f" {figure}", ""))


def _replicas(replicas: Sequence[Placed]) -> tuple[Span, ...]:
    return tuple(span for one in replicas for span in _replica(one))


def _replica(placed: Placed) -> tuple[Span, ...]:
    """Render a replica's revision or role, which of its devices this is if it has several, and its
    state: "llama@3 2/4 ready"."""
    replica = placed.replica
    ref = replica.revision or "standby"
    if replica.function and replica.role == "trial":
        ref = f"{replica.function} (trial)"
    state = shown(replica.state)
    nth = f" {placed.at}/{placed.total}" if placed.total > 1 else ""
    parts = (("  ", ""), (shown(ref), ""), (nth, "dim"))
    return parts if ref == state else (*parts, (f" {state}", STATES.get(state, "")))


def _natural(id: str) -> list[tuple[int, str]]:
    """Return a sort key that orders cpu:2 before cpu:10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(id) if part
    ]
