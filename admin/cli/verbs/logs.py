"""fnctl logs."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Annotated, Any

import typer

from admin.cli.errors import INTERRUPTED
from admin.cli.options import Session, connected
from admin.cli.verbs.show import Name
from admin.text import plain

LINES = 100


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
    items = session.client.logs(name, lines)
    session.answer({"items": items}, lambda: render(items))
    if not items:
        session.next(f"fnctl why {name}")


def print_followed(session: Session, name: str, lines: int) -> None:
    """Print the stream until the function is removed, across restarts of the server.

    Raises ApiError, or Unreachable if the server stays unreachable.
    """
    from admin.client.client import ApiError
    from admin.client.sse import Disconnected, Patience, Position, resumed

    connect = partial(session.client.follow_logs, name, lines)
    retry = Patience(
        lambda reason: session.remark(f"{reason}; waiting for it …"),
        lambda: session.remark("the server is back"),
    )
    is_known = False
    try:
        for item in resumed(connect, retry, Position()):
            if isinstance(item, Disconnected):
                continue
            is_known = True
            show(session, item.type, json.loads(item.data))
    except ApiError as error:
        # The function was removed if it existed before and is unknown now.
        if not (is_known and error.code == "unknown_function"):
            raise
        session.remark(f"{name} is gone")


def show(session: Session, kind: str, data: dict[str, Any]) -> None:
    """Print one event of the stream; unknown kinds are ignored."""
    if session.as_json:
        typer.echo(json.dumps({"event": kind, **data}))
    elif kind == "lines":
        typer.echo(plain(render([data])))
    elif kind == "end":
        session.remark(f"{data.get('replica', '')} has ended")


def render(items: list[dict[str, Any]]) -> str:
    """Render every line with the id of its replica."""
    lines = [
        f"{item.get('replica', '')} | {line}"
        for item in items
        for line in str(item.get("text", "")).splitlines()
    ]
    return "\n".join(lines) or "no logs"
