"""fnctl logs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from admin import documents as d
from admin.cli.errors import INTERRUPTED
from admin.cli.options import Session, connected
from admin.cli.verbs.show import Name
from admin.client import routes
from admin.text import plain

if TYPE_CHECKING:
    from admin.cli.live.events import EventReader
    from admin.client.sse import Event

LINES = 100
PATIENCE_S = 60.0
"""Seconds without a server before the stream is given up."""
PAUSE_S = 0.5
"""Seconds between two attempts to reach it."""


@connected
def logs(
    session: Session,
    name: Name,
    lines: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Number of lines per replica.")
    ] = LINES,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as well, until Ctrl-C.")
    ] = False,
) -> None:
    """Print the logs of a function's replicas.

    With --follow, new lines are printed as they are written; with --json, one JSON object per line.

    \b
    Example:
      fnctl logs digits --lines 20
      fnctl logs digits -f
    """
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            print_followed(session, name, lines)
            return
        raise typer.Exit(INTERRUPTED)

    found = session.client.items(routes.LOGS, name, lines=lines)
    session.show(found, render, lambda items: () if items else (f"fnctl why {name}",))


def print_followed(session: Session, name: str, lines: int) -> None:
    """Print the stream until the function is removed, across restarts of the server.

    Raises ApiError, or Unreachable if the server stays unreachable.
    """
    from admin.cli.live.events import EventReader
    from admin.client.client import ApiError
    from admin.client.sse import Disconnected, Position, Retry, resumed

    events = EventReader(d.events.LOG_EVENTS)
    connect = partial(session.client.follow_logs, name, lines)
    retry = Retry(
        (PAUSE_S,),
        PATIENCE_S,
        on_lost=lambda reason: session.remark(f"{reason}; waiting for it …"),
        on_back=lambda: session.remark("the server is back"),
    )
    is_known = False
    try:
        for item in resumed(connect, retry, Position()):
            if isinstance(item, Disconnected):
                continue
            is_known = True
            show(session, events, item)
    except ApiError as error:
        # The function was removed if it existed before and is unknown now.
        if not (is_known and error.code == "unknown_function"):
            raise
        session.remark(f"{name} is gone")


def show(session: Session, events: EventReader[d.events.LogEvent], event: Event) -> None:
    """Print one event of the stream; with --json also one that this release does not know."""
    from admin.client.transport import json_object

    if session.as_json:
        if (data := json_object(event.data.encode())) is not None:
            typer.echo(json.dumps({"event": event.type, **data}))
        return
    for found in events.read(event):
        if isinstance(found, d.functions.ReplicaLog):
            typer.echo(plain(render([found])))
        elif isinstance(found, d.events.EndEvent):
            session.remark(f"{found.replica} has ended")
        else:
            session.remark(f"ignored: {found.kind}: {found.why}")


def render(items: Sequence[d.functions.ReplicaLog]) -> str:
    """Render every line with the id of its replica."""
    lines = [f"{item.replica} | {line}" for item in items for line in item.text.splitlines()]
    return "\n".join(lines) or "no logs"
