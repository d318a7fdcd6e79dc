"""fnctl usage."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from admin.cli.completion import function_names
from admin.cli.options import Session, connected
from admin.text import get, table

NUMBERS: Final = ("calls", "tokens_in", "tokens_out", "unknown")
OTHERS: Final = "_others"


class By(StrEnum):
    """Grouping of the usage."""

    FUNCTION = "function"
    KEY = "key"


@connected
def usage(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[FUNCTION]", help="Only of this function.", autocompletion=function_names
        ),
    ] = "",
    by: Annotated[By, typer.Option(help="What is listed.")] = By.FUNCTION,
    since: Annotated[
        str,
        typer.Option(help="Hours or days until now, or the first day (UTC): 24h, 7d, 2026-11-01."),
    ] = "24h",
) -> None:
    """Show what the models of /v1 were used for, by function or by key.

    TOKENS IN and TOKENS OUT are what the functions' servers said. UNKNOWN are calls that broke off,
    or whose answers said no tokens; nothing is estimated. Whole hours count, and the last seconds
    are missing. Functions and keys that were removed stay.

    \b
    Examples:
      fnctl usage
      fnctl usage --by key --since 7d
    """
    answer = session.client.usage(by.value, since, name)
    session.answer(answer, lambda: render(answer))


def render(answer: dict[str, Any]) -> str:
    """Render the answer: a table with the sum below, and what is not listed."""
    is_by_key, items = answer.get("by") == "key", answer.get("items") or []
    total, left_out = answer.get("total") or {}, int(answer.get("left_out") or 0)
    begin = datetime.fromtimestamp(float(answer.get("from_s") or 0), UTC)
    since = f"since {begin:%Y-%m-%d %H:%M} UTC"
    if not items:
        return f"no calls of /v1 {since}"
    head = ("KEY", "NOTE") if is_by_key else ("FUNCTION",)
    rows = [[*(_key(item) if is_by_key else _function(item)), *_numbers(item)] for item in items]
    if left_out:
        rows.append([f"{left_out} more", *[""] * (len(head) + len(NUMBERS) - 1)])
    rows.append(["total", *[""] * (len(head) - 1), *_numbers(total)])
    titles = (*head, "CALLS", "TOKENS IN", "TOKENS OUT", "UNKNOWN")
    return f"{table(titles, rows)}\n{since}"


def _key(item: dict[str, Any]) -> tuple[str, str]:
    id = get(item, "key")
    if id == OTHERS:
        return "others", "not told apart"
    note = get(item, "note")
    return id if item.get("key") else "none", "removed" if item.get("removed") else note


def _function(item: dict[str, Any]) -> tuple[str]:
    name = get(item, "function")
    if name == OTHERS:
        return ("others",)
    return (f"{name} (removed)" if item.get("removed") else name,)


def _numbers(item: dict[str, Any]) -> list[str]:
    return [f"{int(item.get(name) or 0):,}" for name in NUMBERS]
