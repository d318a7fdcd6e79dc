"""fnctl why."""

from __future__ import annotations

from datetime import UTC, datetime

from admin.cli.options import Session, connected
from admin.cli.verbs.show import Name


@connected
def why(session: Session, name: Name) -> None:
    """Explain the state of a function.

    Prints its latest decisions with their reasons, its latest errors, and its latest cold starts by
    phase.

    \b
    Example:
      fnctl why digits
    """
    from admin.cli.render import render_why

    answer = {**session.client.why(name), "errors": session.client.errors(name)}
    session.answer(answer, lambda: render_why(answer, datetime.now(UTC).timestamp()))
    if answer.get("state") == "failing":
        session.next(f"fnctl logs {name}")
