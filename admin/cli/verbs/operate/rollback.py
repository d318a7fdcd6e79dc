"""fnctl rollback."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli.session import Session, connected
from admin.cli.text import fields, get
from admin.cli.verbs.show import Name

To = Annotated[
    int | None,
    typer.Option("--to", min=1, metavar="N", help="The revision (default: the one before)."),
]
Breaking = Annotated[
    bool, typer.Option("--breaking", help="Allow what would break callers of the present one.")
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
    from admin.cli.following import finish

    ended = finish(session, session.client.roll_back(name, to, breaking))
    session.answer(ended, lambda: render(ended.get("result") or {}))
    session.next(f"fnctl show {name}", f"fnctl invoke {name}")


def render(result: dict[str, Any]) -> str:
    """The end of a rollback as text."""
    head = f"calls go to {get(result, 'revision')}, which takes over from {get(result, 'from')}"
    return f"{head}\n{fields([('switch', get(result, 'switch'))])}"
