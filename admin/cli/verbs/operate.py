"""fnctl rollback, scale, sleep, warm, rm."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from admin.cli.options import Session, connected
from admin.cli.verbs.deploy import Idle, Max, Min, given
from admin.cli.verbs.show import Name

To = Annotated[
    int | None,
    typer.Option("--to", min=1, metavar="N", help="The revision (default: the one before)."),
]
Breaking = Annotated[
    bool, typer.Option("--breaking", help="Allow what would break callers of the present one.")
]
Wait = Annotated[
    int, typer.Option("--wait", min=1, max=3600, metavar="SECONDS", help="Give up after so long.")
]


@connected
def rollback(session: Session, name: Name, to: To = None, breaking: Breaking = False) -> None:
    """Send a function's calls to an earlier revision.

    Without --to that is the one that had them before; done again, it goes one further back. The
    revision is warm before calls go to it where both fit.

    \b
    Examples:
      fnctl rollback digits
      fnctl rollback digits --to 3
    """
    from admin.cli.operations import finish
    from admin.cli.render import render_rollback

    ended = finish(session, session.client.roll_back(name, to, breaking))
    session.answer(ended, lambda: render_rollback(ended.get("result") or {}))
    session.next(f"fnctl show {name}", f"fnctl invoke {name}")


@connected
def scale(
    session: Session, name: Name, min: Min = None, max: Max = None, idle: Idle = None
) -> None:
    """Change how many replicas a function has.

    --idle is how long one stays without a call. The change holds until the next one; a deploy
    brings the scaling of its function.toml.

    \b
    Examples:
      fnctl scale digits --min 1
      fnctl scale digits --max 4 --idle 60
    """
    from admin.cli.render import render_scale
    from admin.client.client import ApiError

    changes = given(min=min, max=max, idle_s=idle)
    if not changes:
        raise typer.BadParameter("expected at least one of --min, --max, --idle")
    try:
        answer = session.client.rescale(name, changes)
    except ApiError as error:
        if error.code == "precondition_failed":
            error.add_note("somebody else changed it at the same time: say it again")
        raise
    session.answer(answer, lambda: render_scale(answer))
    session.next(f"fnctl show {name}")


@connected
def sleep(session: Session, name: Name) -> None:
    """Let a function's idle replicas go now.

    Their idle time is not waited for. A replica that is being called stays, and so do those that
    min keeps. The next call wakes the function.

    \b
    Example:
      fnctl sleep digits
    """
    from admin.cli.render import render_sleep

    answer = session.client.put_to_sleep(name)
    session.answer(answer, lambda: render_sleep(answer))
    if answer.get("stay") and answer.get("min"):
        session.next(f"fnctl scale {name} --min 0")
    else:
        session.next("fnctl ls")


@connected
def warm(session: Session, name: Name, wait: Wait = 60) -> None:
    """Have a replica of a function ready.

    It goes again once nobody has called for the function's idle time; fnctl scale NAME --min 1
    keeps one. Where it does not become ready, the reason and the last lines of its log are told.

    \b
    Example:
      fnctl warm digits
    """
    from admin.cli.render import render_warm
    from admin.client.client import ApiError

    try:
        answer = session.client.warm(name, wait)
    except ApiError as error:
        if error.code == "no_room":
            error.add_note(f"fnctl why {name}  or  fnctl ls")
        elif error.code == "function_failing":
            error.add_note(f"fnctl why {name}  or  fnctl logs {name}")
        raise
    session.answer(answer, lambda: render_warm(answer))
    session.next(f"fnctl invoke {name}", f"fnctl scale {name} --min 1")


@connected
def rm(
    session: Session,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a function with all its revisions. Requests in flight are answered.

    \b
    Example:
      fnctl rm digits --yes
    """
    if not yes:
        if session.as_json:
            raise typer.BadParameter("expected --yes beside --json", param_hint="--yes")
        session.client.function(name)  # refuses an unknown name before the question
        _confirm(name)
    answer = session.client.remove(name)
    session.answer(answer, lambda: f"{name} is removed")
    session.next("fnctl ls")


def _confirm(name: str) -> None:
    """Ask on the terminal. Raises typer.Abort for a no, typer.BadParameter for no answer."""
    try:
        is_meant = typer.confirm(f"Remove {name} with all its revisions?", err=True)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        typer.echo(err=True)
        raise typer.BadParameter(
            "expected --yes where there is no terminal to answer on", param_hint="--yes"
        ) from None
    if not is_meant:
        raise typer.Abort
