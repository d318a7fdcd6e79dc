"""Planning of a benchmark: its points, time and connections, checked against limits. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from admin.cli.inputs import wrong

POINTS_MAX: Final = 64
BATCH_MAX: Final = 65_536
CONCURRENCY_MAX: Final = 16_384
"""As many connections as a gateway process takes by default."""
RATE_MAX: Final = 100_000.0
COLD_MAX: Final = 1000
CALLS_MAX: Final = 10_000_000
DESCRIPTORS: Final = 64
"""Descriptors that this process has beside its connections."""
PER_TUNNELLED: Final = 2
"""Descriptors per connection that passes an SSH tunnel: a pair of sockets."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. `batch`: rows per call, 0 for those of the input as it is."""

    batch: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each point in seconds and counted calls, of the whole benchmark, and of a call."""

    seconds: float = 5.0
    warmup_s: float = 1.0
    calls_max: int = 1_000_000
    total_s: float = 600.0
    timeout_s: float = 30.0


def parse_numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    """Parse "1,8,64": whole numbers from 1 to `most`, each once, in the given order. Raises
    BadParameter."""
    found: list[int] = []
    parts = text.split(",", POINTS_MAX)
    if len(parts) > POINTS_MAX:
        wrong(option, f"expected at most {POINTS_MAX} numbers, got more")
    for part in parts:
        word = part.strip()
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < 10 else 0
        if not 1 <= number <= most:
            wrong(option, f"expected numbers from 1 to {most} like 1,8, got {part[:40]!r}")
        if number not in found:
            found.append(number)
    return tuple(found)


def check_number(option: str, value: float, least: float, most: float) -> float:
    """Return `value` if it is a number from `least` to `most`. Raises BadParameter, for NaN too."""
    if not (math.isfinite(value) and least <= value <= most):
        wrong(option, f"expected a number from {least:g} to {most:.12g}, got {value:.12g}")
    return value


def plan_points(batches: tuple[int, ...], concurrencies: tuple[int, ...]) -> tuple[Point, ...]:
    """Return every combination, batch by batch. Raises BadParameter for too many."""
    points = tuple(Point(batch, count) for batch in batches or (0,) for count in concurrencies)
    if len(points) > POINTS_MAX:
        wrong("-b / -c", f"expected at most {POINTS_MAX} combinations, got {len(points)}")
    return points


def check_total(points: tuple[Point, ...], limits: Limits) -> float:
    """Return the least seconds of all points. Raises BadParameter if the total limit is shorter."""
    least_s = len(points) * (limits.seconds + limits.warmup_s)
    if least_s > limits.total_s:
        wrong(
            "--total",
            f"expected at least {least_s:g} s for {len(points)} points of {limits.warmup_s:g} s"
            f" warm-up and {limits.seconds:g} s each, got {limits.total_s:g} s",
        )
    return least_s


def check_descriptors(points: tuple[Point, ...], files_max: int, *, is_tunnelled: bool) -> None:
    """Raise BadParameter if this process may not have that many open files."""
    most = max(point.concurrency for point in points)
    needed = most * (PER_TUNNELLED if is_tunnelled else 1) + DESCRIPTORS
    if needed > files_max:
        wrong(
            "-c",
            f"{most} connections need {needed} open files, and a process may have {files_max}:"
            " raise the limit (ulimit -Hn) or choose fewer",
        )
