"""Questions of fnctl before something that may not be meant, and the option that answers them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from admin.cli.options import Session

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def check_may_ask(session: Session, about: str = "") -> None:
    """Raise typer.BadParameter with --json, whose reader is a program; the text ends in `about`."""
    if session.as_json:
        text = "expected --yes with --json" + (f": {about}" if about else "")
        raise typer.BadParameter(text, param_hint="--yes")


def confirm(question: str) -> None:
    """Ask on the terminal. Raises typer.Abort on no, typer.BadParameter without an answer."""
    try:
        is_meant = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        typer.echo(err=True)
        raise typer.BadParameter(
            "expected --yes, as there is no terminal to confirm on", param_hint="--yes"
        ) from None
    if not is_meant:
        raise typer.Abort
