"""One function of a virtual world."""

from __future__ import annotations

from math import inf
from random import Random

from admin.advice.load_model import Arrival, Conditions, Function


def function(*calls: Arrival, jitter: float = 0.0) -> Function:
    return Function("default/f@1", 0.5, 2.0, 64.0, iter(calls), Random(1), Random(2), jitter)


def test_calls_come_until_there_are_none() -> None:
    """An arrival that stands for several takes as long as all of them."""
    it = function(Arrival(1.0), Arrival(3.0, 4))

    drawn = [(it.advance(), it.took_s, it.weight) for _ in range(3)]

    assert drawn == [(1.0, 0.5, 1), (3.0, 2.0, 4), (inf, 0.5, 1)]


def test_times_differ_by_the_jitter_only() -> None:
    """Without one, each run and load takes its usual time."""
    steady, other = function(Arrival(1.0)), function(Arrival(1.0), jitter=0.2)
    other.advance()

    assert steady.draw_load_s() == 2.0
    assert 1.6 <= other.draw_load_s() <= 2.4
    assert 0.4 <= other.took_s <= 0.6
    assert other.took_s != 0.5
    assert steady.draw_pause_s(0.0) == 0.0
    assert steady.draw_pause_s(3.0) > 0.0


def test_the_manager_is_told_of_its_scaling() -> None:
    """As conditions say it."""
    spec = function().spec(Conditions(min=1, max=3, idle_s=7.0, batch=4))

    assert (spec.min, spec.max, spec.idle_s, spec.target) == (1, 3, 7.0, 8)
    assert (spec.load_s, spec.memory_mib) == (2.0, 64.0)
