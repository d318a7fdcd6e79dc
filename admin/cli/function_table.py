"""The table of `fnctl ls`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from admin import documents as d
from admin.cli.build_lines import build_cell
from admin.text import NONE, duration, number, table

HEAD: Final = (
    "NAME",
    "REVISION",
    "STATE",
    "READY",
    "HELD",
    "IN FLIGHT",
    "RATE",
    "P50",
    "P95",
    "COLD START",
    "READY IN",
    "SLEEPS IN",
    "COMPILED",
)
DROPPED: Final = ("P50", "COLD START", "P95", "REVISION", "SLEEPS IN", "IN FLIGHT", "RATE")
"""Columns dropped on a narrow terminal, first one first."""


def render(
    items: Sequence[d.functions.FunctionRow],
    now_s: float,
    room: int | None = None,
    gone: Sequence[str] = (),
) -> str:
    """Render the functions as a table, at most `room` columns wide if possible, and below them the
    names of those that are gone.

    `now_s`: the server's Unix seconds, 0.0 if unknown.
    """
    if not items and not gone:
        return "no functions yet"
    rows = [row(item, now_s) for item in items]
    rows += [(name, "", "gone", f"{NONE}/{NONE}", NONE, NONE, "0", *[NONE] * 6) for name in gone]
    kept = list(HEAD) if any(cells[-1] != NONE for cells in rows) else list(HEAD[:-1])
    for title in (None, *DROPPED):
        kept = [each for each in kept if each != title]
        at = [HEAD.index(each) for each in kept]
        text = table(kept, [[cells[index] for index in at] for cells in rows])
        if room is None or max(map(len, text.split("\n"))) <= room:
            break
    return "\n".join([text, *reserved_users(items)])


def row(item: d.functions.FunctionRow, now_s: float) -> tuple[str, ...]:
    """Return the cells of one function."""
    phase = item.phase
    if item.state == "warm" and item.golden == "wrong":
        phase = "wrong answers"
    if item.state == "warm" and item.trouble:
        phase = "not answering"
    return (
        item.name,
        item.revision,
        f"{item.state}: {phase}" if phase else item.state,
        f"{item.ready}/{item.wanted}",
        str(item.held),
        str(item.in_flight),
        number(item.rate),
        _duration(item.p50_ms),
        _duration(item.p95_ms),
        _duration(item.cold_start_ms),
        ready_in(item.ready_in_ms),
        sleeps_in(item.sleeps_at_s, now_s),
        build_cell(item.build, now_s),
    )


def reserved_users(items: Sequence[d.functions.FunctionRow]) -> list[str]:
    """Return a line for each function whose server may have a reserved user id."""
    return [f"{one.name} may run as {one.reserved_user}" for one in items if one.reserved_user]


def ready_in(ms: float | None) -> str:
    """Return the time until a replica is ready: "now", an estimate, or a dash if unknown."""
    if ms is None:
        return NONE
    return f"~{duration(float(ms))}" if ms else "now"


def sleeps_in(at_s: float | None, now_s: float) -> str:
    """Return the time until the idle replica is stopped, or a dash if unknown."""
    if not at_s or not now_s:
        return NONE
    left_s = max(0.0, float(at_s) - now_s)
    return f"{left_s:.0f} s" if left_s < 120 else duration(left_s * 1e3)


def _duration(ms: float | None) -> str:
    return NONE if ms is None else duration(float(ms))
