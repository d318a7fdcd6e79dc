"""Tests of the simulation: machine and dispatcher in virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from admin.advice.fleet import Fleet
from admin.advice.load_model import (
    Arrival,
    Ask,
    Clock,
    Conditions,
    Figures,
    Function,
    Process,
    ServerShape,
)
from admin.advice.simulation import Callers, World
from pool_manager.core import commands, events
from pool_manager.core.events import DemandReported
from tests.unit.admin.advice.test_load_model import ask


def play(
    *calls: Arrival, run_s: float = 0.1, load_s: float = 2.0, closed: int = 0, **changes: Any
) -> Figures:
    """Simulate an hour of one function, or the conditions that `changes` give."""
    given = {"start_s": 1.0, "release_s": 0.0, "hours": 1 / 60, "idle_s": 10.0, "max": 1}
    conditions = Conditions(**{**given, **changes})
    one = Function("default/f@1", run_s, load_s, 0.0, iter(calls), Random(0), Random(0))
    one.closed = closed
    return World(conditions, [one]).run().figures


def test_one_call_is_one_cold_start() -> None:
    """A cold call waits for start, bind and load and is answered; its replica stops after its idle
    time."""
    figures = play(Arrival(5.2))

    assert (figures.requests, figures.answered, figures.held) == (1, 1, 1)
    assert (figures.starts, figures.cold_starts, figures.idle_stops) == (1, 1, 1)
    assert figures.held_wait_s == pytest.approx(3.002, abs=1e-6)
    assert figures.loading_s == pytest.approx(3.001, abs=1e-6)
    assert figures.busy_s == 0.1
    assert 10.0 <= figures.ready_s <= 12.0


def test_a_warm_call_does_not_wait() -> None:
    """A call to a ready replica does not wait."""
    figures = play(Arrival(5.2), Arrival(12.0))

    assert (figures.requests, figures.held, figures.cold_starts) == (2, 1, 1)


def test_a_call_that_stands_for_several_counts_as_many() -> None:
    """A weighted call counts as that many requests, and its run takes as long as all of them."""
    figures = play(Arrival(5.2, 4))

    assert (figures.requests, figures.answered, figures.held) == (4, 4, 4)
    assert figures.busy_s == pytest.approx(0.4)
    assert figures.held_wait_s == pytest.approx(4 * 3.002, abs=1e-6)


def test_another_replica_of_a_warm_function_is_no_cold_start() -> None:
    """A second replica that load requires is a start, but not a cold start."""
    calls = [Arrival(5.0 + n / 10) for n in range(300)]

    figures = play(*calls, run_s=0.5, max=2, batch=1)

    assert figures.starts == 2
    assert figures.cold_starts == 1


def test_a_call_over_its_wait_budget_leaves() -> None:
    """A call leaves when its wait budget, shorter than the cold start, is spent."""
    figures = play(Arrival(5.2), wait_s=1.0)

    assert (figures.expired, figures.answered) == (1, 0)
    assert figures.held_wait_s == pytest.approx(1.0)


def test_a_floor_keeps_its_replica() -> None:
    """With min 1 the replica never stops; only a call before it is ready is held."""
    figures = play(Arrival(0.5), Arrival(30.0), min=1, idle_s=1.0)

    assert (figures.starts, figures.idle_stops, figures.held) == (1, 0, 1)


def test_standbys_are_given_away() -> None:
    """A cold start that takes a standby has no start phase."""
    figures = play(Arrival(20.2), standbys=1, device_kind="cpu", devices=2)

    assert figures.held_wait_s == pytest.approx(2.002, abs=1e-6)


def test_callers_who_ask_again_are_bounded() -> None:
    """A closed loop of two callers has at most two open requests: each calls again after its answer
    and a pause."""
    figures = play(closed=2, think_s=1.0, run_s=0.5)

    assert figures.answered > 20
    assert figures.requests - figures.answered <= 2


KEY = "default/f@1"


def test_a_call_without_a_replica_is_held_and_reported_at_once() -> None:
    """A call without a replica is held and reported at once as an urgent edge; the periodic report
    covers all functions."""
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


class Gateway:
    """Gateway that records the events it receives."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, process: Process, asks: list[Ask]) -> None:
        self.heard.append("started")

    def ended(self, process: Process, ask: Ask) -> None:
        self.heard.append("ended")

    def goaway(self, process: Process) -> None:
        self.heard.append("goaway")

    def lost(self, process: Process) -> None:
        self.heard.append("lost")


class Rig:
    """Fleet with one launched process; records the fleet's events."""

    def __init__(self) -> None:
        self.clock, self.figures, self.gateway = Clock(), Figures(), Gateway()
        self.events: list[events.Event] = []
        function = Function(KEY, 0.1, 2.0, 64.0, iter(()), Random(0), Random(0))
        conditions = Conditions(start_s=1.0, release_s=0.5)
        self.fleet = Fleet(
            conditions, self.clock, {KEY: function}, self.events.append, self.figures
        )
        self.fleet.attach(self.gateway)
        self.fleet.launch(commands.Launch("r1", KEY, ("cuda:0",), "serve", {}))

    def until(self, when_s: float) -> list[str]:
        """Let time pass until `when_s`; return the kinds of all events so far."""
        while self.clock.next_s() <= when_s:
            self.clock.step()
        self.clock.now = when_s
        return [type(event).__name__ for event in self.events]

    def load(self) -> Process:
        self.until(1.0)
        self.fleet.bind(commands.Bind("r1", KEY))
        self.until(4.0)
        return self.fleet.processes["r1"]


def test_a_process_starts_loads_and_runs() -> None:
    """A process reports each step after the step's duration."""
    rig = Rig()
    rig.load()
    rig.fleet.accept("r1", ask(0.5))
    rig.fleet.accept("r1", ask(0.5))

    assert rig.until(4.6) == ["Greeted", "Loaded", "FirstRun"]
    assert rig.gateway.heard == ["started", "started", "ended"]
    assert rig.until(5.1) == ["Greeted", "Loaded", "FirstRun"]
    assert rig.gateway.heard[-1] == "ended"


def test_an_idle_process_drains_and_a_used_one_refuses() -> None:
    """A drain for idleness is refused if the last run is too recent."""
    rig = Rig()
    rig.load()
    rig.fleet.drain(commands.Drain("r1", 60.0))
    refused = rig.until(4.1)[-1]
    rig.fleet.drain(commands.Drain("r1", 0.5))
    ended = rig.until(4.2)[-1]
    rig.fleet.release(commands.Release("r1", "why"))

    assert (refused, ended) == ("NotIdle", "Lost")
    assert rig.until(5.0)[-1] == "Released"
    assert rig.gateway.heard == ["goaway", "lost"]
    assert not rig.fleet.is_alive("r1")
    assert rig.figures.ready_s > 0.0


def test_a_request_recalled_in_time_is_not_run() -> None:
    """A recalled request that waits behind a run is not run; TERM ends the process."""
    rig = Rig()
    process = rig.load()
    first, second = ask(5.0), ask(5.0)
    second.id = 7
    rig.fleet.accept("r1", first)
    rig.fleet.accept("r1", second)

    rig.fleet.recall("r1", 7)
    rig.fleet.terminate(commands.Terminate("r1", "why"))

    assert rig.gateway.heard == ["started", "ended", "lost"]
    assert (process.dead, list(process.waiting)) == (True, [])


def servers(calls: dict[str, list[Arrival]], stream_s: float, **changes: Any) -> World:
    """Simulate server functions that start for 60 s and serve two exchanges at once."""
    given = {"start_s": 1.0, "release_s": 0.1, "hours": 0.4, "idle_s": 60.0, "max": 1, "devices": 1}
    made = [
        Function(f"default/{key}@1", stream_s, 60.0, 0.0, iter(those), Random(0), Random(0))
        for key, those in calls.items()
    ]
    for function in made:
        function.server = ServerShape(2, 300.0, 600.0)
    return World(Conditions(**{**given, **changes}), made).run()


def test_a_server_runs_exchanges_at_once() -> None:
    """Exchanges of a server do not wait for each other, up to its concurrency, and are no batch;
    the replica is busy while any is open."""
    figures = servers({"a": [Arrival(5.0), Arrival(6.0), Arrival(7.0)]}, 100.0).figures

    first, second, third = figures.server_waits_s
    assert (round(first), round(second)) == (61, 60)
    assert round(third) == round(first + 100.0) - 2
    assert (figures.answered, figures.cut, len(figures.waits_s)) == (3, 0, 0)
    assert round(figures.busy_s) == 200


def test_a_busy_server_is_swapped_softly() -> None:
    """Another function waits until the open exchange has ended, and cuts nothing."""
    calls = {"a": [Arrival(5.0), Arrival(200.0)], "b": [Arrival(100.0)]}
    figures = servers(calls, 150.0).figures

    assert (figures.answered, figures.cut, figures.swaps) == (3, 0, 2)
    # The exchange of a began at 66 s; b starts when it has ended, and a again after b.
    assert figures.server_waits_s[1] == pytest.approx(216.0 - 100.0 + 61.0, abs=3.0)


def test_a_soft_swap_is_revoked() -> None:
    """A caller that leaves before the exchange has ended gives the server back to its callers."""
    calls = {"a": [Arrival(5.0), Arrival(300.0)], "b": [Arrival(100.0)]}
    made = [
        Function(f"default/{key}@1", 280.0, 60.0, 0.0, iter(those), Random(0), Random(0))
        for key, those in calls.items()
    ]
    made[0].server, made[1].server = ServerShape(2, 300.0, 600.0), ServerShape(2, 300.0, 60.0)
    conditions = Conditions(start_s=1.0, hours=0.4, idle_s=600.0, max=1, devices=1)

    figures = World(conditions, made).run().figures

    assert (figures.revoked, figures.expired, figures.answered) == (1, 1, 2)
    assert figures.starts == 1


def test_an_exchange_beyond_the_drain_is_cut() -> None:
    """A swap ends an exchange after `drain_s`, and that is counted."""
    calls = {"a": [Arrival(5.0)], "b": [Arrival(100.0)]}
    figures = servers(calls, 1000.0, hours=0.2).figures

    assert figures.cut >= 1
