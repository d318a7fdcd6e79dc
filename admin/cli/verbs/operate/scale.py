"""fnctl scale."""

from __future__ import annotations

from typing import Any

import typer

from admin.cli.session import Session, connected
from admin.cli.text import get, number
from admin.cli.verbs.deploy import Idle, Max, Min, given
from admin.cli.verbs.show import Name


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
    from admin.client import ApiError

    changes = given(min=min, max=max, idle_s=idle)
    if not changes:
        raise typer.BadParameter("expected at least one of --min, --max, --idle")
    try:
        answer = session.client.rescale(name, changes)
    except ApiError as error:
        if error.code == "precondition_failed":
            error.add_note("somebody else changed it at the same time: say it again")
        raise
    session.answer(answer, lambda: render(answer))
    session.next(f"fnctl show {name}")


def render(answer: dict[str, Any]) -> str:
    """The scaling as text."""
    idle = number(float(answer.get("idle_s") or 0))
    least, most = get(answer, "min"), get(answer, "max")
    return f"{get(answer, 'name')}: min {least}, max {most}, idle {idle} s"
