"""What one look at a machine found, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found, and what to do about it ("" for nothing)."""

    level: Level
    name: str
    found: str
    todo: str = ""


def render(checks: Sequence[Check]) -> str:
    """One line per check, and below it what to do."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{check.level:<4}  {check.name.ljust(width)}  {check.found}")
        if check.todo:
            lines.append(f"{'':<4}  {'':<{width}}  -> {check.todo}")
    return "\n".join(lines)


def to_json(checks: Sequence[Check]) -> list[dict[str, str]]:
    """The checks as plain JSON data."""
    return [asdict(check) for check in checks]


def softened(checks: Sequence[Check]) -> list[Check]:
    """The checks of what nothing depends on here: what fails is only a warning."""
    return [replace(each, level="warn") if each.level == "fail" else each for each in checks]
