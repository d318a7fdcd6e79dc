"""fnctl ls."""

from __future__ import annotations

from typing import Any

from admin.cli.session import Session, connected
from admin.cli.text import NONE, duration, get, table

HEAD = ("NAME", "REVISION", "STATE", "READY", "HELD", "IN FLIGHT", "COLD START", "READY IN")


@connected
def ls(session: Session) -> None:
    """List the functions and how they are.

    READY is how many replicas take calls, of how many are wanted; HELD are requests that wait.
    READY IN is how long a call that came now would wait for a replica, most likely.

    \b
    Example:
      fnctl ls --json
    """
    items = session.client.functions()
    session.answer({"items": items}, lambda: render(items))
    if not items:
        session.next("fnctl deploy model.onnx")


def render(items: list[dict[str, Any]]) -> str:
    """The functions as a table."""
    return table(HEAD, [row(item) for item in items]) if items else "no functions yet"


def row(item: dict[str, Any]) -> tuple[str, ...]:
    """One function's cells."""
    cold_ms = item.get("cold_start_ms")
    return (
        get(item, "name"),
        get(item, "revision"),
        get(item, "state"),
        f"{get(item, 'ready')}/{get(item, 'wanted')}",
        get(item, "held"),
        get(item, "in_flight"),
        NONE if cold_ms is None else duration(float(cold_ms)),
        ready_in(item.get("ready_in_ms")),
    )


def ready_in(ms: float | None) -> str:
    """When a replica will be there: "now", about how long, or a dash where nobody can tell."""
    if ms is None:
        return NONE
    return f"~{duration(float(ms))}" if ms else "now"
