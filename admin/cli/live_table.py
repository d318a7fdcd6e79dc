"""`fnctl ls --watch`: a table that is redrawn on a terminal, else a line for every change."""

from __future__ import annotations

import json
import sys
import time
from typing import Final

import msgspec
import typer

from admin.cli.errors import INTERRUPTED
from admin.cli.function_table import render
from admin.cli.live.events import EventThread, Ignored, follow, read_event
from admin.cli.live.state import FunctionChanges, LiveState
from admin.cli.options import Session
from admin.cli.top.layout import freshness, ignored
from admin.cli.top.lines import Line, cut
from admin.client.sse import Disconnected
from admin.text import plain

REDRAW_S: Final = 0.25
BELOW: Final = 2
"""Lines below the table: its freshness, if it is old, and the cursor."""


def watch(session: Session) -> None:
    """Show the functions until Ctrl-C, which ends the command with exit code 130."""
    try:
        if session.as_json or not sys.stdout.isatty():
            _print_changes(session)
        else:
            _show(session)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def table_lines(live: LiveState, now: float, size: tuple[int, int]) -> list[Line]:
    """Return the table and its freshness, within `size` (columns, lines)."""
    width, height = size
    functions = live.resources.functions
    items = [functions[name] for name in sorted(functions)]
    is_live = live.is_live(now)
    text = render(items, live.server_s(now), width) if live.is_complete else ""
    lines = [cut(((line, "" if is_live else "dim"),), width) for line in plain(text).split("\n")]
    notes = [] if is_live else [freshness(live, now)]
    notes += [ignored(live)] if live.ignored else []
    room = max(1, height - max(BELOW, 1 + len(notes)))
    if len(lines) > room:
        left = len(lines) - room + 1
        lines = [*lines[: room - 1], ((f"… and {left} more: fnctl top scrolls", "dim"),)]
    return [*lines, *(cut((note,), width) for note in notes)]


def _print_changes(session: Session) -> None:
    """Print each changed function as a line of JSON or a row of the table."""
    live, changes, is_first, is_lost = LiveState(), FunctionChanges(), True, False
    for item in follow(session.client.events, time.sleep, read_event):
        now = time.monotonic()
        ignored_before = len(live.ignored)
        live.apply(item, now)
        if isinstance(item, Ignored) and len(live.ignored) > ignored_before:
            session.remark(f"ignored: {item.kind}: {item.why}")
        if isinstance(item, Disconnected) and not is_lost:
            session.remark(f"reconnecting: {item.why}")
            is_lost = True
        # The server's time is unknown before the first beat.
        if live.retry_s is not None or live.is_reading or live.beat is None:
            continue
        is_lost = False
        changed, gone = changes.since(live.resources.functions)
        if session.as_json:
            lines = [msgspec.to_builtins(row) for row in changed]
            for line in (*lines, *({"name": name, "state": "gone"} for name in gone)):
                typer.echo(json.dumps(line))
        elif changed or gone:
            rows = render(changed, live.server_s(now), gone=gone).split("\n")
            typer.echo(plain("\n".join(rows if is_first else rows[1:])))
            is_first = False


def _show(session: Session) -> None:
    from rich.console import Console

    from admin.cli.top.terminal import Screen

    event_thread, live = EventThread(session.client.events), LiveState()
    screen = Screen(Console(), is_whole=False)
    screen.open()
    try:
        while True:
            for item in event_thread.take(REDRAW_S):
                live.apply(item, time.monotonic())
            screen.show(table_lines(live, time.monotonic(), screen.size))
    finally:
        event_thread.close()
        screen.close()
