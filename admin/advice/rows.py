"""A function's past played through the policy, once for each of several `idle_s`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Final

from admin.replay.conditions import HOUR_S, Conditions
from admin.replay.figures import Figures
from admin.replay.fleet import BIND_S
from admin.replay.function import Function
from admin.replay.spreading import MINUTE_S, spread
from admin.replay.world import World

IDLE_S: Final = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Tried besides the present one."""
PLAYED_MIN, PLAYED_MAX = 15, 150
"""Arrivals of one minute that are played singly, for an `idle_s` of 10 s and more, and for one of
1 s and less: two of them are at most 8 s apart, or 0.8 s."""
KEY: Final = "default/it@1"


@dataclass(frozen=True, slots=True)
class Case:
    """One function's past. `minutes` are (Unix seconds, requests), rising, all from `from_s` on and
    before `to_s`; `cold_s` is what its first caller waits for a cold start, `run_s` what a run
    takes. The others are its settings as they are."""

    from_s: float
    to_s: float
    minutes: list[tuple[int, int]]
    cold_s: float
    run_s: float
    idle_s: float
    min: int = 0
    max: int = 1
    batch: int = 1
    wait_s: float = 55.0


@dataclass(frozen=True, slots=True)
class Row:
    """What would have been with `idle_s`. `held` requests found no replica and waited `waited_s`
    together. `device_s` is from launch to leaving, `idle_device_s` the part without a run."""

    idle_s: float
    cold_starts: int
    waited_s: float
    held: int
    device_s: float
    idle_device_s: float
    is_current: bool


def advise(case: Case, idle_s: Sequence[float] = IDLE_S) -> list[Row]:
    """One row for each of these and the present one, rising; without those, save the present one,
    that `is_blurred`."""
    rows: list[Row] = []
    is_settled = False
    for each in sorted({*idle_s, case.idle_s}):
        is_current = each == case.idle_s
        if is_settled:
            rows.append(replace(rows[-1], idle_s=each, is_current=is_current))
        elif is_current or not is_blurred(case, each):
            figures = _play(case, each)
            rows.append(_row(figures, each, is_current=is_current))
            # Where nobody was asked to go for being idle, nobody would be after a longer time.
            is_settled = not figures.idle_stops
    return rows


def played(idle_s: float) -> int:
    """How many arrivals of a minute are played singly at the most.

    If more came, two that are played are still closer to each other than `idle_s`: no replica goes
    between them that would not go with all of them. And as each takes as long as all that it stands
    for, as much is in flight, by which replicas become more.
    """
    return max(PLAYED_MIN, ceil(PLAYED_MAX / max(1.0, idle_s)))


def is_blurred(case: Case, idle_s: float) -> bool:
    """Whether more came in some minute than can be told apart by so short a time."""
    most = played(idle_s)
    is_fine = 2 * MINUTE_S / most < idle_s
    return not is_fine and any(count > most for _, count in case.minutes)


def _play(case: Case, idle_s: float) -> Figures:
    """The machine and the dispatcher as they are, with room for every replica it may have."""
    conditions = Conditions(
        devices=max(1, case.max),
        hours=(case.to_s - case.from_s) / HOUR_S,
        idle_s=idle_s,
        wait_s=case.wait_s,
        min=case.min,
        max=case.max,
        batch=case.batch,
        start_s=0.0,
        release_s=0.0,
        end_s=0.0,
    )
    draws = Random(0)  # noqa: S311 - there is no jitter that it would decide about
    load_s = max(0.0, case.cold_s - BIND_S)
    calls = spread(case.minutes, case.from_s, played(idle_s))
    function = Function(KEY, case.run_s, load_s, 0.0, calls, draws, draws)
    return World(conditions, [function]).run().figures


def _row(figures: Figures, idle_s: float, *, is_current: bool) -> Row:
    return Row(
        idle_s=idle_s,
        cold_starts=figures.cold_starts,
        waited_s=round(figures.held_wait_s, 3),
        held=figures.held,
        device_s=round(figures.ready_s + figures.moving_s, 3),
        idle_device_s=round(max(0.0, figures.ready_s - figures.busy_s), 3),
        is_current=is_current,
    )
