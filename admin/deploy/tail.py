"""The last lines that a function's newest replica wrote."""

from __future__ import annotations

from pool_manager.manager import Manager

LINES = 20


def last_lines(text: bytes, count: int) -> list[str]:
    """At most `count` lines from the end of an output."""
    return text.decode("utf-8", "replace").splitlines()[-count:]


async def log_tail(manager: Manager, name: str, count: int = LINES) -> list[str]:
    """At most `count` lines of the replica of this function that started last."""
    logs = await manager.logs(name)
    return last_lines(logs[-1][1], count) if logs else []
