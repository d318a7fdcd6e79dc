"""fnctl ls."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from admin.cli.function_table import render
from admin.cli.options import Session, connected
from admin.client import routes


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

        shown(session)
        return

    session.show(
        session.client.items(routes.FUNCTIONS),
        lambda items: render(items, _now_s(), _room()),
        lambda items: () if items else ("fnctl deploy model.onnx",),
    )


def _now_s() -> float:
    from datetime import UTC, datetime

    return datetime.now(UTC).timestamp()


def _room() -> int | None:
    """Return the terminal's columns; None for a pipe or a file."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns
