"""fnctl rm."""

from __future__ import annotations

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
        typer.confirm(f"Remove {name} with all its revisions?", abort=True, err=True)
    answer = session.client.remove(name)
    session.answer(answer, lambda: f"{name} is removed")
    session.next("fnctl ls")
