"""Lines of a screen as plain data: pieces of text, each with a style. Pure.

A style is one of rich's names ("bold", "red", "dim"), or "". No fact is shown by colour alone, as a
terminal may have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from admin.text import bar, one_line, plain

STATES: Final = {
    "warm": "green",
    "ready": "green",
    "waking": "yellow",
    "starting": "yellow",
    "loading": "yellow",
    "draining": "magenta",
    "releasing": "magenta",
    "failing": "bold red",
    "quarantined": "bold red",
    "cordoned": "bold yellow",
    "cold": "bright_black",
    "standby": "cyan",
    "parked": "blue",
    "parking": "blue",
    "proving": "blue",
    "unparking": "yellow",
    "verifying": "yellow",
}
"""Styles by state of a function, replica or device."""
CUT: Final = "…"
_STEPS: Final = " ▁▂▃▄▅▆▇█"

Span = tuple[str, str]
Line = tuple[Span, ...]


def text(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(part for part, _ in line).rstrip()


def shown(value: object) -> str:
    """Return untrusted text in a form that is safe for a line."""
    return one_line(plain(str(value)))


def fit(value: str, width: int, right: bool = False) -> str:
    """Return `value` in exactly `width` columns; a longer one ends with "…"."""
    if len(value) > width:
        return value[: width - 1] + CUT if width else ""
    return value.rjust(width) if right else value.ljust(width)


def cut(line: Iterable[Span], width: int) -> Line:
    """Return the first `width` columns of a line."""
    kept: list[Span] = []
    for part, style in line:
        if len(part) > width:
            kept.append((fit(part, width), style))
            break
        kept.append((part, style))
        width -= len(part)
    return tuple(kept)


def apart(left: Line, right: Line, width: int) -> Line:
    """Return one line with two texts at its ends; the left one is cut if both do not fit."""
    room = width - sum(len(part) for part, _ in right)
    if room < 1:
        return cut(right, width)
    head = cut(left, room - 1)
    gap = room - sum(len(part) for part, _ in head)
    return (*head, (" " * gap, ""), *right)


def faded(line: Line) -> Line:
    """Return a line in the style of an old state."""
    return tuple((part, "dim") for part, _ in line)


def meter(share: float, width: int) -> str:
    """Return a bar in exactly `width` columns."""
    return bar(share, width).ljust(width)


def spark(values: Iterable[float], width: int) -> str:
    """Draw the last `width` values as bars scaled to their maximum, the newest on the right."""
    last = list(values)[-width:] if width else []
    most = max(last, default=0.0)
    if most <= 0:
        return " " * width
    steps = len(_STEPS) - 1
    drawn = "".join(_STEPS[min(steps, math.ceil(value / most * steps))] for value in last)
    return drawn.rjust(width)
