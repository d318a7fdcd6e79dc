"""Processes that take their time."""

from __future__ import annotations

from random import Random

from admin.advice.load_model import Ask, Clock, Conditions, Figures, Function, Process
from admin.advice.simulation import Fleet
from pool_manager.core import commands, events
from tests.unit.admin.advice.test_load_model_replica import ask

KEY = "default/f@1"


class Gateway:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, process: Process) -> None:
        self.heard.append("started")

    def ended(self, process: Process, ask: Ask) -> None:
        self.heard.append("ended")

    def goaway(self, process: Process) -> None:
        self.heard.append("goaway")

    def lost(self, process: Process) -> None:
        self.heard.append("lost")


class Rig:
    """A fleet with one process that was launched, and the events that came of it."""

    def __init__(self) -> None:
        self.clock, self.figures, self.gateway = Clock(), Figures(), Gateway()
        self.events: list[events.Event] = []
        function = Function(KEY, 0.1, 2.0, 64.0, iter(()), Random(0), Random(0))
        conditions = Conditions(start_s=1.0, release_s=0.5)
        self.fleet = Fleet(
            conditions, self.clock, {KEY: function}, self.events.append, self.figures
        )
        self.fleet.attach(self.gateway)
        self.fleet.launch(commands.Launch("r1", KEY, "cuda:0", "serve", {}))

    def until(self, when_s: float) -> list[str]:
        """Let time pass; the kinds of the events so far."""
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
    """What it does is told when it has taken its time."""
    rig = Rig()
    rig.load()
    rig.fleet.accept("r1", ask(0.5))
    rig.fleet.accept("r1", ask(0.5))

    assert rig.until(4.6) == ["Greeted", "Loaded", "FirstRun"]
    assert rig.gateway.heard == ["started", "started", "ended"]
    assert rig.until(5.1) == ["Greeted", "Loaded", "FirstRun"]
    assert rig.gateway.heard[-1] == "ended"


def test_an_idle_process_goes_and_a_used_one_refuses() -> None:
    """A drain for idleness is refused where the last run is not that long ago."""
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


def test_what_is_recalled_in_time_is_not_run() -> None:
    """A request that waits behind a run can be taken back; TERM ends the rest."""
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
