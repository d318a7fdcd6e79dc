"""A function's last errors, as text. Pure."""

from __future__ import annotations

from typing import Any

from admin.cli.text import ago, get, one_line


def failures(items: list[dict[str, Any]], now_s: float, most: int) -> str:
    """The `most` newest, the oldest first as everything that has a time; "" where there is none.
    `now_s` in Unix seconds."""
    lines = []
    for item in reversed(items[:most]):
        count = int(item.get("count") or 1)
        times = f" ({count} times)" if count > 1 else ""
        when = ago(float(item.get("at_s") or 0), now_s)
        detail = one_line(get(item, "detail"))
        lines.append(f"  {when:<12}  {get(item, 'code')}{times}: {detail}")
    return "\n".join(["errors", *lines]) if lines else ""
