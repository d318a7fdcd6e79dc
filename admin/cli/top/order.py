"""Which functions are shown, and in which order. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from admin.cli.live.happenings import seconds

Key = Callable[[dict[str, Any]], tuple[Any, ...]]

_STATES: Final = ("failing", "waking", "draining", "warm", "cold")


def arranged(items: Iterable[dict[str, Any]], sort: str, wanted: str) -> list[dict[str, Any]]:
    """The functions that match `wanted`, by `sort`, one of `SORTS`; alike ones by name.

    `wanted` is part of a name, or a whole state; "" matches all.
    """
    key = SORTS[sort]
    matching = [item for item in items if matches(item, wanted)]
    return sorted(matching, key=lambda item: (*key(item), item["name"]))


def matches(item: dict[str, Any], wanted: str) -> bool:
    """Whether a function is meant."""
    wanted = wanted.casefold()
    return wanted in str(item["name"]).casefold() or wanted == str(item.get("state")).casefold()


def _activity(item: dict[str, Any]) -> tuple[Any, ...]:
    """What is worked with first, then what is in trouble, warm, asleep.

    The load counts by powers of two: rows would jump with every second's figures otherwise.
    """
    load = seconds(item.get("rate")) + seconds(item.get("held")) + seconds(item.get("in_flight"))
    state = item.get("state")
    if load > 0 or state in ("waking", "draining"):
        return 0, -math.frexp(load)[1] if load else 1000
    return ({"failing": 1, "warm": 2}.get(str(state), 3),)


def _state(item: dict[str, Any]) -> tuple[Any, ...]:
    state = item.get("state")
    return (_STATES.index(state) if state in _STATES else len(_STATES),)


def _most(field: str) -> Key:
    return lambda item: (-seconds(item.get(field)),)


SORTS: Final[dict[str, Key]] = {
    "activity": _activity,
    "name": lambda _item: (),
    "state": _state,
    "held": _most("held"),
    "rate": _most("rate"),
    "p95": _most("p95_ms"),
}
"""Ways to sort, by the names the screen shows; the first is where it begins."""
