"""Property tests of soft swaps: servers and a model whose callers come and go on few devices.

Besides the promises of all histories: no exchange is cut, each soft drain has a claimant, and after
any history everybody who is called is served.
"""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from pool_manager.core import events
from pool_manager.core.commands import Command, Quiesce, Resume
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec, Replica, State
from registry.exchange import Demand, Load
from tests.support.book import Book
from tests.support.doses import amount
from tests.support.promises import Promises, Sleepless

SERVERS = ["default/s@1", "default/t@1", "default/u@1"]
MODEL = "default/m@1"
KEYS = [*SERVERS, MODEL]
TRIAL = "default/trial@1"
DRAIN_S = 20.0
TURN_S = 10.0 + DRAIN_S + 15.0
"""Residency, drain and the end of a server that is terminated; loads take a second."""

keys = st.sampled_from(KEYS)
picks = st.integers(0, 3)

SEEN: Counter[str] = Counter()
"""Commands over all histories."""


class Servers(Promises):
    """Devices, functions and their callers."""

    def __init__(self) -> None:
        super().__init__()
        self.seqs = itertools.count(1)
        self.called: set[str] = set()

    @initialize(count=st.integers(1, 3), memory_mib=st.sampled_from([0.0, 900.0]))
    def build(self, count: int, memory_mib: float) -> None:
        """Create a host on which fewer functions fit than there are."""
        there = [Device(f"GPU-{n}", "cuda", 1_200.0) for n in range(count)]
        self.book = Book({device.id: device for device in there})
        ids, twins = itertools.count(1), itertools.count(1)
        self.machine = Machine(there, lambda: f"r{next(ids)}")
        self.twin = Sleepless(there, lambda: f"r{next(twins)}")
        self.is_list_read = True
        self.feed(events.ReplicasListed())
        for key in KEYS:
            self.define(key, memory_mib)

    def check(self, command: Command, commands: list[Command]) -> None:
        SEEN[type(command).__name__] += 1
        super().check(command, commands)

    @rule(key=keys, memory_mib=st.sampled_from([0.0, 400.0]))
    def define(self, key: str, memory_mib: float) -> None:
        """A function is deployed or its settings change."""
        spec = PoolSpec(
            key,
            idle_s=30.0,
            function=key.partition("@")[0],
            share=0.5 if memory_mib == 400.0 else 1.0,
            memory_mib=memory_mib,
            is_server=key in SERVERS,
            drain_s=DRAIN_S,
            stop_grace_s=5.0,
        )
        self.feed(events.PoolDefined(self.spec(spec)))

    @rule(key=keys)
    def remove(self, key: str) -> None:
        """A function is removed."""
        self.specs.pop(key, None)
        self.called.discard(key)
        self.feed(events.PoolRemoved(key))

    @rule(is_server=st.booleans())
    def try_out(self, is_server: bool) -> None:
        """A deploy requests a trial, which waits for its turn."""
        if TRIAL not in self.specs:
            spec = PoolSpec(TRIAL, role="trial", is_server=is_server, evicts=True)
            self.feed(events.PoolDefined(self.spec(spec)))

    @rule(those=st.sets(keys))
    def call(self, those: set[str]) -> None:
        """These functions have callers from now on, the others have none."""
        self.called = those & self.specs.keys()
        self.report()

    @rule(seconds=st.integers(1, 8))
    def wait(self, seconds: int) -> None:
        """Time passes: processes start, idle replicas agree to stop, streams go on."""
        for _ in range(seconds):
            self.second()

    @rule()
    def wait_for_long(self) -> None:
        """Callers that wait have preempted somebody in the end."""
        for _ in range(20):
            self.second()

    @precondition(lambda self: self.in_state(State.DRAINING))
    @rule(pick=picks, is_released=st.booleans())
    def end_streams(self, pick: int, is_released: bool) -> None:
        """The last exchange of a draining replica ends, or its process dies."""
        replica = self.picked(pick, State.DRAINING)
        self.feed(events.Lost(replica.id, "exited with code 0"))
        if is_released:
            self.feed(events.Released(replica.id))

    @precondition(lambda self: self.in_state(State.DRAINING))
    @rule(pick=picks)
    def refuse(self, pick: int) -> None:
        """A replica reports that it is in use, whether that is expected or not."""
        self.feed(events.NotIdle(self.picked(pick, State.DRAINING).id, 0.0))

    @precondition(lambda self: self.in_state(State.READY))
    @rule(pick=picks)
    def crash(self, pick: int) -> None:
        """A ready replica dies."""
        self.feed(events.Lost(self.picked(pick, State.READY).id, "exit 1", cause="exit 1"))

    @rule(pick=picks, is_back=st.booleans())
    def lose_device(self, pick: int, is_back: bool) -> None:
        """A device needs a reset, or is usable again."""
        device = sorted(self.book.devices)[pick % len(self.book.devices)]
        self.feed(
            events.DeviceBack(device) if is_back else events.DeviceLost(device, "XID 48", False)
        )

    # The surroundings

    def second(self, *, is_fair: bool = False) -> None:
        """Let a second pass. `is_fair`: replicas answer at once, and TERM ends a process."""
        self.now += 1.0
        for replica in self.machine.replicas():
            self.live(replica, is_fair=is_fair)
        self.report()
        self.feed(events.Tick())
        self.feed(events.Tick())
        self.check_progress()

    def live(self, replica: Replica, *, is_fair: bool) -> None:
        id = replica.id
        match replica.state:
            case State.STARTING:
                self.feed(events.Greeted(id, {}))
            case State.LOADING:
                self.feed(events.Loaded(id, 8, True, 0.0, {"load": 1e3}, {"load_ms": 1e3}))
                if replica.role == "trial":
                    self.specs.pop(replica.pool, None)
            case State.RELEASING:
                self.feed(events.Released(id))
            case State.DRAINING if is_fair and replica.is_listed and not replica.is_quiesced:
                self.feed(events.NotIdle(id, 0.0 if replica.pool in self.called else 60.0))
            case State.DRAINING if is_fair and replica.terminated:
                self.feed(events.Lost(id, "exited with code 0"))

    def report(self) -> None:
        loads = {key: self.load(key) for key in sorted(self.called)}
        self.feed(events.DemandReported(Demand("w", next(self.seqs), True, loads, [])))

    def load(self, key: str) -> Load:
        """A called function has an exchange open where a replica serves, else one waits."""
        pool = self.machine.pools[key]
        if pool.is_warm:
            return Load(0, 1, 0.0)
        return Load(1, sum(one.is_listed for one in pool.replicas.values()), 0.0)

    def in_state(self, state: State) -> list[Replica]:
        there = [one for one in self.machine.replicas() if one.state is state]
        return sorted(there, key=lambda one: one.id)

    def picked(self, pick: int, state: State) -> Replica:
        there = self.in_state(state)
        return there[pick % len(there)]

    def teardown(self) -> None:
        """Whatever happened: with all devices usable, each called function is served within as
        many turns as there are functions, and the trial has its turn."""
        if not hasattr(self, "machine"):
            return
        for device in sorted(self.cordoned):
            self.feed(events.DeviceBack(device))
        waiting = self.called | ({TRIAL} & self.specs.keys())
        for _ in range(int((len(KEYS) + 1) * TURN_S + 60.0)):
            self.second(is_fair=True)
            serving = {one.pool for one in self.in_state(State.READY)}
            waiting -= serving | ({TRIAL} - self.specs.keys())
            if not waiting:
                break
        assert not waiting, f"never served: {waiting}"


TestServers = Servers.TestCase
TestServers.__doc__ = "No history cuts an exchange, forgets a claim, or starves a function."
TestServers.settings = settings(
    max_examples=amount(80, 400),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
)


def test_the_histories_have_soft_swaps() -> None:
    """The histories above do begin and revoke soft swaps, so that their promises mean something."""
    if SEEN:  # empty where only this test runs
        assert SEEN[Quiesce.__name__] > 0
        assert SEEN[Resume.__name__] > 0
