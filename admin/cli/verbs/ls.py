"""fnctl ls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from admin.cli.build_lines import build_cell
from admin.cli.options import Session, connected
from admin.cli.render import reserved_users
from admin.text import NONE, duration, get, number, table

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


@connected
def ls(
    session: Session,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep running and show changes, until Ctrl-C.")
    ] = False,
) -> None:
    """List the functions and their current state.

    READY is the number of ready and of wanted replicas. HELD is the number of requests in the
    queue. RATE is answers per second; P50 and P95 cover the last minute. READY IN estimates how
    long a call that arrived now would wait for a replica ("-" before a revision has had five cold
    starts; of a parked one, how long a wake takes). SLEEPS IN is the time until the idle replica is
    stopped or parked. COMPILED is shown if any
    function asks for a compiled model. A narrow terminal shows fewer columns. Below are the
    functions whose image may run with a reserved user id: root's, this server's or a replica's.

    \b
    Examples:
      fnctl ls --json
      fnctl ls --watch
    """
    if watch:
        from admin.cli.live_table import watch as shown

        shown(session, render)
        return
    items = session.client.functions()
    session.answer({"items": items}, lambda: render(items, _now_s(), _room()))
    if not items:
        session.next("fnctl deploy model.onnx")


def render(items: Sequence[dict[str, Any]], now_s: float, room: int | None = None) -> str:
    """Render the functions as a table, at most `room` columns wide if possible.

    `now_s`: the server's Unix seconds, 0.0 if unknown.
    """
    if not items:
        return "no functions yet"
    rows = [row(item, now_s) for item in items]
    kept = list(HEAD) if any(cells[-1] != NONE for cells in rows) else list(HEAD[:-1])
    for title in (None, *DROPPED):
        kept = [each for each in kept if each != title]
        at = [HEAD.index(each) for each in kept]
        text = table(kept, [[cells[index] for index in at] for cells in rows])
        if room is None or max(map(len, text.split("\n"))) <= room:
            break
    return "\n".join([text, *reserved_users(list(items))])


def row(item: dict[str, Any], now_s: float) -> tuple[str, ...]:
    """Return the cells of one function."""
    state, phase = get(item, "state"), get(item, "phase")
    if state == "warm" and get(item, "golden") == "wrong":
        phase = "wrong answers"
    if state == "warm" and get(item, "trouble"):
        phase = "not answering"
    return (
        get(item, "name"),
        get(item, "revision"),
        f"{state}: {phase}" if phase else state,
        f"{get(item, 'ready') or NONE}/{get(item, 'wanted') or NONE}",
        get(item, "held") or NONE,
        get(item, "in_flight") or NONE,
        number(float(item.get("rate") or 0)),
        _duration(item.get("p50_ms")),
        _duration(item.get("p95_ms")),
        _duration(item.get("cold_start_ms")),
        ready_in(item.get("ready_in_ms")),
        sleeps_in(item.get("sleeps_at_s"), now_s),
        build_cell(item.get("build"), now_s),
    )


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


def _now_s() -> float:
    from datetime import UTC, datetime

    return datetime.now(UTC).timestamp()


def _room() -> int | None:
    """Return the terminal's columns; None for a pipe or a file."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns
