"""fnctl warm."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli.session import Session, connected
from admin.cli.text import duration, get
from admin.cli.verbs.show import Name

Wait = Annotated[
    int, typer.Option("--wait", min=1, max=3600, metavar="SECONDS", help="Give up after so long.")
]


@connected
def warm(session: Session, name: Name, wait: Wait = 60) -> None:
    """Have a replica of a function ready.

    It goes again once nobody has called for the function's idle time; fnctl scale NAME --min 1
    keeps one. Where it does not become ready, the reason and the last lines of its log are told.

    \b
    Example:
      fnctl warm digits
    """
    from admin.client import ApiError

    try:
        answer = session.client.warm(name, wait)
    except ApiError as error:
        if error.code == "no_room":
            error.add_note(f"fnctl why {name}  or  fnctl ls")
        elif error.code == "function_failing":
            error.add_note(f"fnctl why {name}  or  fnctl logs {name}")
        raise
    session.answer(answer, lambda: render(answer))
    session.next(f"fnctl invoke {name}", f"fnctl scale {name} --min 1")


def render(answer: dict[str, Any]) -> str:
    """The answer as text."""
    revision = get(answer, "revision")
    if answer.get("was_warm"):
        return f"{revision} is warm already"
    return f"{revision} is warm after {duration(float(answer.get('took_ms') or 0))}"
