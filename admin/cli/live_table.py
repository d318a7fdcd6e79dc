"""`fnctl ls --watch`: a table that is redrawn on a terminal, else a line for every change."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import typer

from admin.cli.errors import INTERRUPTED
from admin.cli.live.events import EventThread, StreamItem, follow
from admin.cli.live.state import FunctionChanges, LiveState
from admin.cli.options import Session
from admin.cli.top.layout import freshness
from admin.cli.top.lines import Line, cut
from admin.client.sse import Disconnected
from admin.text import plain

REDRAW_S: Final = 0.25
BELOW: Final = 2
"""Lines below the table: its freshness and the cursor."""

Render = Callable[[Sequence[dict[str, Any]], float, int | None], str]
"""Renders functions as a table. Arguments: functions, the server's time (Unix s), max columns."""


def watch(session: Session, render: Render) -> None:
    """Show the functions until Ctrl-C, which ends the command with exit code 130."""
    try:
        if session.as_json or not sys.stdout.isatty():
            _print_changes(session, render)
        else:
            _show(session, render)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def live_states(
    items: Iterator[StreamItem], clock: Callable[[], float]
) -> Iterator[tuple[LiveState, str]]:
    """Yield the state after each item that completes it, with the reason of a lost connection."""
    live = LiveState()
    for each in items:
        live.update(each, clock())
        if isinstance(each, Disconnected):
            yield live, each.why
        # The server's time is unknown before the first beat.
        elif not live.is_reading and live.beat:
            yield live, ""


def table_lines(live: LiveState, render: Render, now: float, size: tuple[int, int]) -> list[Line]:
    """Return the table and its freshness, within `size` (columns, lines)."""
    width, height = size
    functions = live.resources.functions
    items = [functions[name] for name in sorted(functions)]
    is_live = live.is_live(now)
    text = render(items, live.server_s(now), width) if live.is_complete else ""
    lines = [cut(((line, "" if is_live else "dim"),), width) for line in plain(text).split("\n")]
    room = max(1, height - BELOW)
    if len(lines) > room:
        left = len(lines) - room + 1
        lines = [*lines[: room - 1], ((f"… and {left} more: fnctl top scrolls", "dim"),)]
    return lines if is_live else [*lines, cut((freshness(live, now),), width)]


def _print_changes(session: Session, render: Render) -> None:
    """Print each changed function as a line of JSON or a row of the table."""
    changes, is_first, is_lost = FunctionChanges(), True, False
    for live, why in live_states(follow(session.client.events, time.sleep), time.monotonic):
        if why and not is_lost:
            session.remark(f"reconnecting: {why}")
        is_lost = bool(why)
        changed = [] if why else changes.since(live.resources.functions)
        if session.as_json:
            for item in changed:
                typer.echo(json.dumps(item))
        elif changed:
            rows = render(changed, live.server_s(time.monotonic()), None).split("\n")
            typer.echo(plain("\n".join(rows if is_first else rows[1:])))
            is_first = False


def _show(session: Session, render: Render) -> None:
    from rich.console import Console

    from admin.cli.top.terminal import Screen

    event_thread, live = EventThread(session.client.events), LiveState()
    screen = Screen(Console(), is_whole=False)
    screen.open()
    try:
        while True:
            for item in event_thread.take(REDRAW_S):
                live.update(item, time.monotonic())
            screen.show(table_lines(live, render, time.monotonic(), screen.size))
    finally:
        event_thread.close()
        screen.close()
