"""The devices as rows of a screen: memory, use, and the replicas on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from admin.cli.live.happenings import seconds
from admin.cli.text import NONE, get
from admin.cli.top.lines import STATES, Line, Span, cut, fit, meter, shown

Item = dict[str, Any]

METER: Final = 8
BUSY: Final = 5
ROOMY: Final = 90
"""Columns from which on there is a bar for use, too."""
ID_MAX: Final = 24
_GIB: Final = 1024
_DIGITS: Final = re.compile(r"(\d+)")


def rows(
    devices: Mapping[str, Item], replicas: Mapping[str, Sequence[Item]], room: int, width: int
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


def _own(device: Item, longest: int, memory: int, width: int) -> tuple[Span, ...]:
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


def _taken(device: Item) -> float:
    """What is in use of it, as the GPU's driver sees it, else what replicas are charged with."""
    used = device.get("used_mib")
    return seconds(device.get("charged_mib")) if used is None else seconds(used)


def _whole(device: Item) -> float:
    return seconds(device.get("total_mib")) or seconds(device.get("memory_mib"))


def _memory_text(device: Item) -> str:
    whole = _whole(device)
    return f"{_taken(device) / _GIB:.1f}/{whole / _GIB:.1f} GiB" if whole else ""


def _busy(device: Item, is_narrow: bool) -> tuple[Span, ...]:
    """The share of time with a model running."""
    busy = device.get("busy")
    figure = f"{NONE:>4}" if busy is None else f"{seconds(busy):>4.0%}"
    if is_narrow or busy is None:
        blank = "" if is_narrow else " " * (BUSY + 1)
        return ((f"busy {blank}{figure}", "" if busy is not None else "bright_black"),)
    drawn = meter(seconds(busy), BUSY)
    return (("busy ", ""), (drawn, "green on bright_black"), (f" {figure}", ""))


def _replicas(replicas: Sequence[Item]) -> tuple[Span, ...]:
    return tuple(span for replica in replicas for span in _replica(replica))


def _replica(replica: Item) -> tuple[Span, ...]:
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
