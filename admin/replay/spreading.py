"""Counts per minute as single arrivals, the same each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

from admin.replay.function import Arrival

MINUTE_S: Final = 60.0


def spread(minutes: Iterable[tuple[int, int]], from_s: float, most: int) -> Iterator[Arrival]:
    """Arrivals in seconds after `from_s`, rising. `minutes`: when each began (Unix seconds, rising)
    and how many requests came in it.

    Of more than `most` in a minute, one is played in each `most`-th part of it and stands for
    several: two of them are never further apart than two such parts.
    """
    for minute_s, count in minutes:
        draws = Random(minute_s)  # noqa: S311 - no secret, and the same each time
        begins_s = minute_s - from_s
        if count <= most:
            for at_s in sorted(draws.uniform(0.0, MINUTE_S) for _ in range(count)):
                yield Arrival(begins_s + at_s)
            continue
        weight, rest = divmod(count, most)
        for n in range(most):
            at_s = (n + draws.random()) * MINUTE_S / most
            yield Arrival(begins_s + at_s, weight + (n < rest))
