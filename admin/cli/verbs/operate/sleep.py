"""fnctl sleep."""

from __future__ import annotations

from typing import Any

from admin.cli.session import Session, connected
from admin.cli.text import get
from admin.cli.verbs.show import Name


@connected
def sleep(session: Session, name: Name) -> None:
    """Let a function's idle replicas go now.

    Their idle time is not waited for. A replica that is being called stays, and so do those that
    min keeps. The next call wakes the function.

    \b
    Example:
      fnctl sleep digits
    """
    answer = session.client.put_to_sleep(name)
    session.answer(answer, lambda: render(answer))
    if answer.get("stay") and answer.get("min"):
        session.next(f"fnctl scale {name} --min 0")
    else:
        session.next("fnctl ls")


def render(answer: dict[str, Any]) -> str:
    """The answer as text."""
    name, asked, stay = get(answer, "name"), int(answer["asked"]), int(answer["stay"])
    if not asked and not stay:
        return f"{name} has no replica to let go"
    lines = [f"{name}: {_replicas(asked)} asked to go"]
    if stay:
        least = int(answer.get("min") or 0)
        why = f"min is {least}" if least else "called just now"
        lines.append(f"  {_replicas(stay)} stay{'s' if stay == 1 else ''}: {why}")
    return "\n".join(lines)


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"
