"""fnctl top."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.errors import INTERRUPTED
from admin.cli.options import Session, connected

if TYPE_CHECKING:
    from admin.client.client import Client
    from admin.client.sse import Event

PIPE_WIDTH = 120
"""Columns without a terminal; the environment variable COLUMNS overrides it."""


@connected
def top(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
) -> None:
    """Watch functions, replicas and devices; ? lists the keys.

    Without a terminal it prints one snapshot, with --json one JSON object for every change.

    \b
    Examples:
      fnctl top
      fnctl top --once
      fnctl top --json
    """
    if session.as_json and not once:
        _stream(session.client)
    elif once or session.as_json or not _has_terminal():
        _print_once(session)
    else:
        _show(session.client)


def _stream(client: Client) -> None:
    """Print every event as a line of JSON, including lost connections."""
    import time

    from admin.cli.live.events import follow
    from admin.client.sse import Disconnected

    for item in follow(client.events, time.sleep, _objects):
        if isinstance(item, Disconnected):
            item = "broken", {"why": item.why, "again_in_s": item.pause_s}
        kind, data = item
        typer.echo(json.dumps({"event": kind, "data": data}))


def _objects(event: Event) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the kind and the data of an event, also of one that this release does not know; nothing
    if its data is no object."""
    from admin.client.transport import json_object

    data = json_object((event.data or "{}").encode())
    if data is not None:
        yield event.type, data


def _print_once(session: Session) -> None:
    import shutil
    import time

    from admin.cli.live.events import follow, read_event
    from admin.cli.live.state import read_live_state, snapshot_json
    from admin.cli.top.layout import ScreenState, full_lines
    from admin.cli.top.lines import text

    live = read_live_state(follow(session.client.events, time.sleep, read_event), time.monotonic)
    if session.as_json:
        typer.echo(json.dumps(snapshot_json(live), indent=2))
        return
    width = shutil.get_terminal_size((PIPE_WIDTH, 40)).columns
    lines = full_lines(live, ScreenState(session.client.url), time.monotonic(), width)
    if not sys.stdout.isatty():
        typer.echo("\n".join(text(line) for line in lines))
        return
    from rich.console import Console

    from admin.cli.top.terminal import Screen

    Screen(Console(), is_whole=False).print(lines)


def _show(client: Client) -> None:
    import time

    from rich.console import Console

    from admin.cli.live.events import EventThread
    from admin.cli.top.app import BackgroundRequests, Top
    from admin.cli.top.terminal import HungUp, Screen, Terminal

    event_thread = EventThread(client.events)
    screen, terminal = Screen(Console(), is_whole=True), Terminal(sys.stdin.fileno())
    clock = time.monotonic
    try:
        ended = Top(
            event_thread, BackgroundRequests(client), screen, terminal, url=client.url, clock=clock
        ).run()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except HungUp:
        raise typer.Exit(1) from None
    finally:
        event_thread.close()
    if ended.verb == "interrupt":
        raise typer.Exit(INTERRUPTED)


def _has_terminal() -> bool:
    """Return whether keys can be read and a screen drawn."""
    from rich.console import Console

    return sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal
