"""Calls in, demand out."""

from __future__ import annotations

from random import Random

from admin.advice.load_model import Arrival, Clock, Conditions, Figures, Function
from admin.advice.simulation import Callers, Fleet
from pool_manager.core.events import DemandReported

KEY = "default/f@1"


def test_who_finds_nobody_is_held_and_told_of_at_once() -> None:
    """The manager hears of a waiter without a replica as an edge, and of all in full."""
    clock, figures, told = Clock(), Figures(), list[DemandReported]()
    conditions = Conditions(hours=1.0)
    calls = iter([Arrival(1.0), Arrival(4000.0)])
    one = Function(KEY, 0.1, 1.0, 0.0, calls, Random(0), Random(0))
    fleet = Fleet(conditions, clock, {KEY: one}, lambda _: None, figures)
    callers = Callers(conditions, clock, fleet, told.append, figures)
    callers.expect(one)

    quiet = callers.tell_all()
    clock.step()
    urgent = list(callers.urgent)
    callers.tell_urgent()
    busy = callers.tell_all()

    assert (quiet, urgent, busy) == (False, [KEY], True)
    edge, full = told[1].demand, told[2].demand
    assert (edge.full, edge.revisions[KEY].queued) == (False, 1)
    assert (full.full, full.revisions[KEY].queued) == (True, 1)
    assert (figures.requests, figures.held) == (1, 1)
