"""fnctl operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from admin.cli.completion import function_names, operation_ids
from admin.cli.options import Session, connected
from admin.text import ago, command, duration, get, one_line, table

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
    function: Annotated[
        str,
        typer.Argument(
            metavar="[FUNCTION]", help="Only of this function.", autocompletion=function_names
        ),
    ] = "",
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
    found = [one for one in session.client.operations() if not function or _is_of(one, function)]
    items = found if every else latest(found)
    now_s = datetime.now(UTC).timestamp()
    session.answer({"items": items}, lambda: render(items, now_s))
    if running := next((one for one in items if one.get("state") == "running"), None):
        session.next(*(f"fnctl operation {verb} {get(running, 'id')}" for verb in OF_RUNNING))


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
        found = session.client.operation(operation)
    session.remark(_head(found, datetime.now(UTC).timestamp()))
    ended = finish(session, found, is_watched=True)
    session.answer(ended, lambda: render_ended(ended))
    session.warn(ended.get("result") or {})
    session.next(command("fnctl", "show", get(ended, "name")))


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
        ended = session.client.cancel(operation)
    kind, name, state = get(ended, "kind"), get(ended, "name"), get(ended, "state")
    if state == "running":
        raise Conflict(f"the {kind} of {name} still runs: the server stops, and resumes it later")
    if state != "cancelled":
        raise Conflict(f"the {kind} of {name} had ended before: it is {state}")
    session.answer(ended, lambda: f"{kind} of {name} is cancelled: nothing changed")


def latest(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operations that run and the first ENDED_MAX others, in the same order."""
    ended = [get(one, "id") for one in items if one.get("state") != "running"][:ENDED_MAX]
    return [one for one in items if one.get("state") == "running" or get(one, "id") in ended]


def render(items: list[dict[str, Any]], now_s: float) -> str:
    """Render operations as a table; `now_s` in Unix seconds."""
    rows = [
        (
            get(one, "id"),
            get(one, "kind"),
            get(one, "name"),
            get(one, "state"),
            ago(_seconds(one, "created_s"), now_s),
            _took(one, now_s),
            _detail(one),
        )
        for one in items
    ]
    head = ("OPERATION", "KIND", "FUNCTION", "STATE", "STARTED", "TOOK", "DETAIL")
    return table(head, rows) if rows else "no operations"


def _head(operation: dict[str, Any], now_s: float) -> str:
    """Return the first line of a watched operation: "deploy of digits, started 3 min ago"."""
    started = ago(_seconds(operation, "created_s"), now_s)
    return f"{get(operation, 'kind')} of {get(operation, 'name')}, started {started}"


def _took(operation: dict[str, Any], now_s: float) -> str:
    """Return how long an operation took, or has taken until now."""
    end_s = _seconds(operation, "ended_s") or now_s
    return duration(max(0.0, end_s - _seconds(operation, "created_s")) * 1e3)


def _detail(operation: dict[str, Any]) -> str:
    """Return the phase of a running operation, the reason of a failure, or the result."""
    state = get(operation, "state")
    text = get(operation, "result", "revision")
    if state == "failed":
        text = get(operation, "error", "detail") or get(operation, "error", "title")
    elif state != "done":
        text = get(operation, "phase")
    text = one_line(text)
    return text if len(text) <= DETAIL_MAX else text[: DETAIL_MAX - 1] + "…"


def _is_of(operation: dict[str, Any], function: str) -> bool:
    return get(operation, "name") == function


def _seconds(operation: dict[str, Any], key: str) -> float:
    return float(operation.get(key) or 0.0)


@contextmanager
def _ids_explained() -> Iterator[None]:
    """Name the list of operations to whoever gives an id that the server does not have."""
    from admin.client.client import ApiError

    try:
        yield
    except ApiError as error:
        if error.code == UNKNOWN:
            error.add_note("list the operations: fnctl operation ls --all")
        raise
