"""fnctl operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.completion import OnlyFunction, operation_ids
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import ago, command, duration, one_line, table

OF_RUNNING: Final = ("watch", "cancel")
"""Commands that are named for a running operation."""
ENDED_MAX: Final = 20
"""Ended operations that are listed without --all."""
DETAIL_MAX: Final = 100
"""Max characters of a row's detail."""
UNKNOWN: Final = "unknown"
"""Code of the server's error for an id that it does not have."""

app = typer.Typer(
    help="List, watch and cancel deploys and rollbacks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Id = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION", help="Its id: fnctl operation ls.", autocompletion=operation_ids
    ),
]


@app.command("ls")
@connected
def ls(
    session: Session,
    function: OnlyFunction = "",
    every: Annotated[
        bool, typer.Option("--all", help="All that the server keeps, not only the latest.")
    ] = False,
) -> None:
    """List the operations that run, and the latest that have ended, newest first.

    An operation is a deploy, with the pull of its image and its trial, or a rollback.

    \b
    Examples:
      fnctl operation ls
      fnctl operation ls digits --all
    """
    found = session.client.items(routes.OPERATIONS)
    asked = [row for row in found.value if function in ("", row.name)]
    rows = asked if every else latest(asked)
    ids = {row.id for row in rows}
    sent = {"items": [one for one in found.sent["items"] if one["id"] in ids]}
    session.answer(sent, lambda: render(rows, datetime.now(UTC).timestamp()))
    if running := next((row for row in rows if row.state == "running"), None):
        session.next(*(f"fnctl operation {verb} {running.id}" for verb in OF_RUNNING))


@app.command("watch")
@connected
def watch(session: Session, operation: Id) -> None:
    """Watch an operation until it ends, with the output of the command that started it.

    Ctrl-C ends the watching only. The exit code is 1 if the operation fails or is cancelled.

    \b
    Example:
      fnctl operation watch 5f3c9a1be0d24c77
    """
    from admin.cli.operations import finish
    from admin.cli.render import render_ended

    with _ids_explained():
        found = session.client.call(routes.OPERATION, operation)
    session.remark(_head(found.value, datetime.now(UTC).timestamp()))
    ended = finish(session, found, is_watched=True)
    session.show(ended, render_ended)
    session.warn(ended.value.result.warnings)
    session.next(command("fnctl", "show", ended.value.name))


@app.command("cancel")
@connected
def cancel(session: Session, operation: Id) -> None:
    """Cancel an operation that runs. Nothing changes, and its trial is stopped.

    One that has ended is not undone: the exit code is 1. So it is with one whose traffic moves
    already; fnctl rollback goes back.

    \b
    Example:
      fnctl operation cancel 5f3c9a1be0d24c77
    """
    from registry.errors import Conflict

    with _ids_explained():
        ended = session.client.call(routes.CANCEL, operation)
    row = ended.value
    if row.state == "running":
        raise Conflict(
            f"the {row.kind} of {row.name} still runs: the server stops, and resumes it later"
        )
    if row.state != "cancelled":
        raise Conflict(f"the {row.kind} of {row.name} had ended before: it is {row.state}")
    session.show(ended, lambda _: f"{row.kind} of {row.name} is cancelled: nothing changed")


def latest(rows: Sequence[d.deploys.OperationRow]) -> list[d.deploys.OperationRow]:
    """Return the operations that run and the first ENDED_MAX others, in the same order."""
    ended = [row.id for row in rows if row.state != "running"][:ENDED_MAX]
    return [row for row in rows if row.state == "running" or row.id in ended]


def render(rows: Sequence[d.deploys.OperationRow], now_s: float) -> str:
    """Render operations as a table; `now_s` in Unix seconds."""
    cells = [
        (
            row.id,
            row.kind,
            row.name,
            row.state,
            ago(row.created_s, now_s),
            duration(max(0.0, (row.ended_s or now_s) - row.created_s) * 1e3),
            _detail(row),
        )
        for row in rows
    ]
    head = ("OPERATION", "KIND", "FUNCTION", "STATE", "STARTED", "TOOK", "DETAIL")
    return table(head, cells) if cells else "no operations"


def _head(row: d.deploys.OperationRow, now_s: float) -> str:
    """Return the first line of a watched operation: "deploy of digits, started 3 min ago"."""
    return f"{row.kind} of {row.name}, started {ago(row.created_s, now_s)}"


def _detail(row: d.deploys.OperationRow) -> str:
    """Return the phase of a running operation, the reason of a failure, or the result."""
    text = row.result.revision or ""
    if row.state == "failed":
        text = row.error.detail or row.error.title or ""
    elif row.state != "done":
        text = row.phase
    text = one_line(text)
    return text if len(text) <= DETAIL_MAX else text[: DETAIL_MAX - 1] + "…"


@contextmanager
def _ids_explained() -> Iterator[None]:
    """Add the command that lists operations to the server's error for an unknown id."""
    from admin.client.client import ApiError

    try:
        yield
    except ApiError as error:
        if error.code == UNKNOWN:
            error.add_note("list the operations: fnctl operation ls --all")
        raise
