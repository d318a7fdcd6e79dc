"""fnctl logs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli.session import Session, connected
from admin.cli.verbs.show import Name

LINES = 100


@connected
def logs(
    session: Session,
    name: Name,
    lines: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="How many lines.")
    ] = LINES,
) -> None:
    """Print what a function's replicas wrote.

    \b
    Example:
      fnctl logs digits --lines 20
    """
    items = session.client.logs(name, lines)
    session.answer({"items": items}, lambda: render(items))
    if not items:
        session.next(f"fnctl why {name}")


def render(items: list[dict[str, Any]]) -> str:
    """Every line behind the id of its replica."""
    lines = [
        f"{item.get('replica', '')} | {line}"
        for item in items
        for line in str(item.get("text", "")).splitlines()
    ]
    return "\n".join(lines) or "no logs"
