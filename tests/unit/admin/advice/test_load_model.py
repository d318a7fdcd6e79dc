"""Tests of the simulation's parts: clock, processes, arrivals and figures."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.advice.load_model import (
    Arrival,
    Ask,
    Clock,
    Conditions,
    Figures,
    Function,
    Process,
    spread,
)
from admin.advice.simulation import META
from gateway.dispatch.call import Stage


def test_due_actions_run_in_order() -> None:
    """The clock jumps from one due action to the next, in order of time, then of registration."""
    clock, done = Clock(), list[tuple[float, str]]()

    def note(what: str) -> None:
        done.append((clock.now, what))

    clock.at(5.0, note, "last")
    clock.at(1.0, lambda _: clock.after(1.0, note, "later"), None)
    clock.at(2.0, note, "first")
    while clock.next_s() < inf:
        clock.step()

    assert done == [(2.0, "first"), (2.0, "later"), (5.0, "last")]


def test_the_horizon_is_in_seconds() -> None:
    """`hours` becomes a horizon in seconds."""
    assert Conditions(hours=0.5).horizon_s == 1800.0


def ask(service_s: float) -> Ask:
    made = Ask("default/f@1", META, b"", 0.0, 55.0, 60.0)
    made.service_s = service_s
    return made


def test_a_batch_lasts_as_long_as_its_longest() -> None:
    """A batch lasts as long as its longest request; further requests wait for the next batch."""
    process = Process("r1", "default/f@1", {}, 0.0, batch=2)
    first, second, third = ask(1.0), ask(3.0), ask(2.0)
    process.waiting.extend([first, second, third])

    took = process.begin()
    done = process.finish(3.0)

    assert (took, done, list(process.waiting)) == (3.0, [first, second], [third])
    assert (process.has_run, process.last_end_s, process.is_idle) == (True, 3.0, False)


def test_the_wait_of_a_held_call_is_weighted() -> None:
    """A held call adds its wait times its weight; waits of warm calls are kept apart, and those of
    abandoned calls are not counted."""
    figures = Figures()
    held, warm, gone = ask(1.0), ask(1.0), ask(1.0)
    held.was_held, held.weight = True, 3
    gone.stage = Stage.ABANDONED
    for one in (held, warm, gone):
        figures.waited(one, 2.0)

    assert figures.held_wait_s == 6.0
    assert list(figures.waits_s) == [2.0, 2.0]


def test_a_process_is_moving_ready_and_busy() -> None:
    """A process's lifetime splits into moving, ready and busy seconds; a standby's counts for no
    function."""
    figures = Figures()
    process = Process("r1", "default/f@1", {}, 1.0)
    process.ready_s, process.left_s, process.busy_s = 3.0, 8.0, 2.0
    figures.gone(process, 8.5)
    figures.gone(Process("s1", "", {}, 0.0), 8.5)

    assert (figures.ready_s, figures.busy_s) == (5.0, 2.0)
    assert (figures.moving_s, figures.loading_s) == (2.5, 2.0)


def test_the_longest_time_without_a_run() -> None:
    """`gaps_s` is each function's longest time without a run, counted from the beginning."""
    figures = Figures()
    for at_s in (4.0, 5.0, 7.0):
        figures.served("f", at_s)

    assert figures.gaps_s == {"f": 4.0}


def function(*calls: Arrival, jitter: float = 0.0) -> Function:
    return Function("default/f@1", 0.5, 2.0, 64.0, iter(calls), Random(1), Random(2), jitter)


def test_calls_come_until_there_are_none() -> None:
    """Arrivals are drawn until none is left; one that stands for several runs as long as all of
    them."""
    it = function(Arrival(1.0), Arrival(3.0, 4))

    drawn = [(it.advance(), it.took_s, it.weight) for _ in range(3)]

    assert drawn == [(1.0, 0.5, 1), (3.0, 2.0, 4), (inf, 0.5, 1)]


def test_times_differ_by_the_jitter_only() -> None:
    """Runs and loads vary within the jitter; without jitter they take their usual time."""
    steady, other = function(Arrival(1.0)), function(Arrival(1.0), jitter=0.2)
    other.advance()

    assert steady.draw_load_s() == 2.0
    assert 1.6 <= other.draw_load_s() <= 2.4
    assert 0.4 <= other.took_s <= 0.6
    assert other.took_s != 0.5
    assert steady.draw_pause_s(0.0) == 0.0
    assert steady.draw_pause_s(3.0) > 0.0


def test_the_manager_is_told_of_its_scaling() -> None:
    """The pool's spec takes its scaling from the conditions."""
    spec = function().spec(Conditions(min=1, max=3, idle_s=7.0, batch=4))

    assert (spec.min, spec.max, spec.idle_s, spec.target) == (1, 3, 7.0, 8)
    assert (spec.load_s, spec.memory_mib) == (2.0, 64.0)


FROM_S = 600.0


def test_the_same_minutes_are_the_same_arrivals() -> None:
    """A minute always gives the same arrivals, wherever the period begins; another minute gives
    others."""
    first = list(spread([(600, 3), (660, 3)], FROM_S, 15))
    second = list(spread([(660, 3)], 660.0, 15))

    assert first == list(spread([(600, 3), (660, 3)], FROM_S, 15))
    moved = [one.when_s - 60.0 for one in first[3:]]
    assert moved == pytest.approx([one.when_s for one in second])
    assert [one.when_s for one in first[:3]] != [one.when_s for one in second]


@given(st.lists(st.integers(0, 10_000), max_size=10), st.integers(1, 50))
def test_arrivals_keep_the_count_of_their_minute(counts: list[int], most: int) -> None:
    """Each minute has its recorded count, within that minute and in order.

    A minute with too many requests has `most` arrivals, with gaps of at most two parts.
    """
    minutes = [(600 + 60 * n, count) for n, count in enumerate(counts)]

    arrivals = list(spread(minutes, FROM_S, most))

    times = [one.when_s for one in arrivals]
    assert times == sorted(times)
    for n, count in enumerate(counts):
        mine = [one for one in arrivals if 60 * n <= one.when_s < 60 * (n + 1)]
        assert sum(one.weight for one in mine) == count
        assert len(mine) == min(count, most)
        if count > most:
            gaps = [later.when_s - one.when_s for one, later in pairwise(mine)]
            assert max(gaps, default=0.0) <= 2 * 60.0 / most
