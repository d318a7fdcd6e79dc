"""fnctl rm."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from admin.cli.session import Session, connected
from admin.cli.verbs.show import Name


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
        session.client.function(name)  # a name that is none is told before anything is asked
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
