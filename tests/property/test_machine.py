"""Whatever happens in whatever order, the machine keeps its promises.

A world of processes, gateways and an impatient clock feeds the machine; every command and every
record is held against the promises after every event.
"""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from pool_manager.core import events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec, Role, State
from registry.exchange import Demand, Load
from tests.support.promises import Promises

KEYS = ["default/a@1", "default/b@1", "default/c@1"]
TRIAL = "default/d@1"
WORKERS = ["w1", "w2"]
DEVICES = [Device("cpu0", "cpu"), Device("cpu1", "cpu"), Device("GPU-1", "cuda", 80_000)]
ENDINGS_MAX = 40
"""Steps of 5 s in which a house that is shut down must be empty."""

COMING = [State.STARTING, State.STANDBY, State.LOADING]

keys = st.sampled_from(KEYS)
picks = st.integers(0, 5)
load = st.builds(Load, st.integers(0, 9), st.integers(0, 3), st.sampled_from([0.0, 0.5]))
loads = st.one_of(
    st.just({}),
    st.builds(lambda key, one: {key: one}, keys, load),
    st.dictionaries(st.sampled_from([*KEYS, "default/unknown@1"]), load, max_size=3),
)


class World(Promises):
    """What surrounds the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.seqs = itertools.count(1)
        self.said: dict[str, dict[str, Load]] = {}

    @initialize(
        count=st.integers(1, 3),
        found=st.lists(st.tuples(keys, st.booleans()), max_size=2),
        is_open=st.sampled_from([True, True, False]),
    )
    def build(self, count: int, found: list[tuple[str, bool]], is_open: bool) -> None:
        """A host with some devices, of which an earlier manager may have left some taken."""
        self.machine = Machine(DEVICES[:count], lambda: f"r{next(self.numbers)}")
        for key in KEYS[:2]:
            self.feed(events.PoolDefined(self.spec(PoolSpec(key, max=2, idle_s=10.0))))
        for number, (key, trial) in enumerate(found[:count]):
            id = f"old{number}"
            self.adopted(id, key, DEVICES[number].id)
            role: Role = "trial" if trial else "serve"
            self.feed(events.Found(id, key, DEVICES[number].id, role))
        if is_open:
            self.read_list()

    # The world's moves

    @rule(key=keys, least=st.integers(0, 2), more=st.integers(0, 2), idle_s=st.sampled_from([0, 5]))
    def define(self, key: str, least: int, more: int, idle_s: float) -> None:
        """A function is deployed or its settings are changed."""
        kind = "cuda" if key == KEYS[2] else "any"
        spec = PoolSpec(key, least, max(1, least + more), idle_s, kind)
        self.feed(events.PoolDefined(self.spec(spec)))

    @rule(key=st.sampled_from([*KEYS, TRIAL]))
    def remove(self, key: str) -> None:
        """A function is removed or a deploy cancelled, there or not."""
        self.specs.pop(key, None)
        self.feed(events.PoolRemoved(key))

    @rule()
    def try_out(self) -> None:
        """A deploy wants a trial."""
        self.feed(events.PoolDefined(self.spec(PoolSpec(TRIAL, role="trial"))))

    @rule(worker=st.sampled_from(WORKERS), wants=loads)
    def demand(self, worker: str, wants: dict[str, Load]) -> None:
        """A gateway worker tells all it holds."""
        self.hear(worker, wants)

    def hear(self, worker: str, wants: dict[str, Load]) -> None:
        self.said[worker] = wants
        self.feed(events.DemandCame(Demand(worker, next(self.seqs), True, wants)))

    @rule(key=keys, one=load)
    def turn_to(self, key: str, one: Load) -> None:
        """All clients call one function, which is brought up, and leave the others idle."""
        for worker in WORKERS:
            self.hear(worker, {key: one})
        for pick in range(len(self.where)):
            self.bring_up(pick)

    @rule(worker=st.sampled_from(WORKERS))
    def lose_worker(self, worker: str) -> None:
        """A gateway worker dies."""
        self.said.pop(worker, None)
        self.feed(events.WorkerLost(worker))

    @precondition(lambda self: self.list_read_s is None)
    @rule()
    def read_list(self) -> None:
        """The driver's list is complete."""
        self.list_read_s = self.now
        self.feed(events.ListRead())

    @precondition(lambda self: self.some(0, State.STARTING))
    @rule(pick=picks, loaded=st.booleans())
    def greet(self, pick: int, loaded: bool) -> None:
        """A process connects back."""
        for id in self.some(pick, State.STARTING):
            self.feed(events.Greeted(id, {"start": 3.0}, loaded))

    @precondition(lambda self: self.some(0, State.STARTING, State.LOADING))
    @rule(pick=picks)
    def load(self, pick: int) -> None:
        """A model is loaded."""
        self.bring_up(pick)

    def bring_up(self, pick: int) -> None:
        for id in self.some(pick, State.STARTING, State.LOADING):
            self.feed(events.Greeted(id, {"start": 3.0}))
            self.feed(events.Loaded(id, 4, True, 80.0, {"load": 5.0}, {"load_ms": 5.0}))
            self.feed(events.FirstRun(id, 1.0))

    @precondition(lambda self: self.some(0, State.DRAINING))
    @rule(pick=picks, idle_s=st.sampled_from([0.0, 3.0]))
    def refuse(self, pick: int, idle_s: float) -> None:
        """A replica that is asked to go says that it was used."""
        for id in self.some(pick, State.DRAINING):
            self.feed(events.NotIdle(id, idle_s))

    @precondition(lambda self: self.where)
    @rule(pick=picks, states=st.sampled_from([list(State), [State.LOADING], [State.DRAINING]]))
    def end(self, pick: int, states: list[State]) -> None:
        """A process exits, crashes, hangs, or refuses its model."""
        for id in self.some(pick, *states):
            self.feed(events.Lost(id, "exit 1", ("last line",), "load"))

    @rule(states=st.sampled_from([COMING, [State.READY], [State.DRAINING], [State.RELEASING]]))
    def clear(self, states: list[State]) -> None:
        """All processes in some state end and are gone at once."""
        for replica in self.machine.replicas():
            if replica.state in states:
                self.feed(events.Lost(replica.id, "exit 1"))
                self.feed(events.Released(replica.id))

    @precondition(lambda self: self.some(0, State.RELEASING))
    @rule(pick=picks, works=st.booleans())
    def release(self, pick: int, works: bool) -> None:
        """What was left of a process is gone, or cannot be got rid of."""
        for id in self.some(pick, State.RELEASING):
            self.feed(events.Released(id) if works else events.NotReleased(id, "stuck"))

    @precondition(lambda self: self.where)
    @rule(pick=picks, number=st.integers(0, 4))
    def cross(self, pick: int, number: int) -> None:
        """Something comes that no longer, or never, belonged to the replica's state."""
        id = next(iter(self.some(pick, *(set(State) - {State.RELEASING}))), "nobody")
        news: list[events.Event] = [
            events.Greeted(id, {}),
            events.NotIdle(id, 1.0),
            events.Released(id),
            events.FirstRun(id, 1.0),
            events.Lost("nobody", "exit 1"),
        ]
        self.feed(news[number])

    @rule(step_s=st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 30.0, 60.0, 400.0]), alive=st.booleans())
    def pass_time(self, step_s: float, alive: bool) -> None:
        """Time goes by; gateways that are alive speak on."""
        self.now += step_s
        if alive:
            for worker, wants in self.said.items():
                self.feed(events.DemandCame(Demand(worker, next(self.seqs), True, wants)))
        self.feed(events.Tick())
        self.check_progress()

    def teardown(self) -> None:
        """Shut down, nothing is left once releases work, whatever the processes do."""
        if not hasattr(self, "machine"):
            return
        self.feed(events.Shutdown())
        for _ in range(ENDINGS_MAX):
            self.now += 5.0
            self.feed(events.Tick())
            for id in self.some(0, State.RELEASING):
                self.feed(events.Released(id))
        assert self.machine.replicas() == []
        assert self.where == {}

    def some(self, pick: int, *states: State) -> list[str]:
        """One replica in one of `states`, if there is any."""
        ids = sorted(r.id for r in self.machine.replicas() if r.state in states)
        return [ids[pick % len(ids)]] if ids else []


TestWorld = World.TestCase
TestWorld.__doc__ = "No history of events makes the machine break a promise."
TestWorld.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
