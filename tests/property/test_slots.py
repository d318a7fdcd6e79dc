"""Property tests of CPU slots: what runs stays within the slots, what is kept within the memory,
and every called function is served in time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core import events
from pool_manager.core.commands import Command, Drain, Launch, Quiesce, Release, Terminate
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S
from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.core.machine import Machine
from pool_manager.core.state import DRAIN_S, Device, PoolSpec, Replica, State
from registry.exchange import Demand, Load

MIB = 73.0
LOAD_S = 2.0
RUN_S = 0.5
REPORT_S = 1.0
TURN_S = RESIDENCY_S + LOAD_S + RUN_S + 4 * REPORT_S
"""A start or a pause, the residency, the end of open calls, and the reports of both."""


def slots(count: int, kept: int) -> list[Device]:
    """Return CPU slots whose memory keeps `kept` replicas."""
    return [Device(f"cpu:{n}", "cpu", kept * MIB + RESERVE_MIB, "cpu") for n in range(count)]


@dataclass
class Gateway:
    """A machine with processes and one gateway: it sends calls to listed replicas, holds the
    others, and reports each second, and at once when a call is held.

    `busy` are the pools that are called again `pause_s` after each answer; all others get calls by
    `call`. An open call ends `run_s` after it was sent.
    """

    devices: list[Device]
    specs: list[PoolSpec]
    run_s: float = RUN_S
    now: float = 1000.0
    busy: set[str] = field(default_factory=set)
    pause_s: float = 0.0
    due: list[tuple[float, int, object]] = field(default_factory=list)
    held: dict[str, list[float]] = field(default_factory=dict)
    opened: dict[str, list[float]] = field(default_factory=dict)
    served: dict[str, list[float]] = field(default_factory=dict)
    starts: int = 0
    drains: int = 0
    excess_s: float = 0.0

    def __post_init__(self) -> None:
        numbers, self.order, self.seqs = itertools.count(1), itertools.count(), itertools.count(1)
        self.machine = Machine(self.devices, lambda: f"r{next(numbers)}")
        self.held = {spec.key: [] for spec in self.specs}
        self.opened = {spec.key: [] for spec in self.specs}
        self.served = {spec.key: [self.now] for spec in self.specs}
        self.feed(events.ReplicasListed())
        self.report()
        for spec in self.specs:
            self.feed(events.PoolDefined(spec))

    def feed(self, event: events.Event) -> None:
        for command in self.machine.handle(event, self.now):
            self.obey(command)
        self.check()

    def later(self, after_s: float, event: object) -> None:
        self.due.append((self.now + after_s, next(self.order), event))

    def obey(self, command: Command) -> None:
        match command:
            case Launch(id):
                self.starts += 1
                self.later(0.5, events.Greeted(id, {"start": 500.0}))
                self.later(LOAD_S, events.Loaded(id, 1, True, MIB, {"load": LOAD_S * 1e3}))
            case Drain(id, None) | Quiesce(id):
                self.drains += 1
                self.later(self.run_s, events.Lost(id, "exit 0"))
            case Terminate(id):
                self.later(0.5, events.Lost(id, "exit 0"))
            case Drain(id):
                self.drains += 1
                self.later(0.01, events.Lost(id, "exit 0"))
            case Release(id):
                self.later(0.1, events.Released(id))

    def load(self, key: str) -> Load:
        held = self.held[key]
        return Load(len(held), len(self.opened[key]), self.now - min(held, default=self.now))

    def report(self, *keys: str) -> None:
        """Report the load of these pools, or of all that have any."""
        loads = {key: self.load(key) for key in keys or self.held}
        if not keys:
            loads = {key: load for key, load in loads.items() if load.busy}
        self.feed(events.DemandReported(Demand("w", next(self.seqs), not keys, loads)))

    def replicas(self, key: str) -> list[Replica]:
        return list(self.machine.pools[key].replicas.values())

    def send(self, key: str) -> None:
        """Send held calls to a replica that takes some."""
        pool = self.machine.pools[key]
        open_now = self.opened[key]
        while self.held[key] and pool.is_warm and len(open_now) < 1:
            self.held[key].pop(0)
            open_now.append(self.now)
            self.served[key].append(self.now)
            self.later(self.run_s, key)

    def call(self, key: str) -> bool:
        """Call a function; whether the call was sent without a word to the manager."""
        self.held[key].append(self.now)
        self.send(key)
        is_held = bool(self.held[key])
        if is_held and not self.machine.pools[key].is_warm:
            self.report(key)
        return not is_held

    def ended(self, key: str) -> None:
        self.opened[key].pop(0)
        if key in self.busy and self.pause_s:
            self.later(self.pause_s, ("call", key))
        elif key in self.busy:
            self.held[key].append(self.now)
        self.send(key)
        if not self.load(key).busy and any(self.held.values()):
            self.report(key)

    def go(self, seconds: float) -> None:
        """Let `seconds` pass, with every event at its time."""
        end_s, tick_s = self.now + seconds, self.now
        while self.now < end_s:
            self.due.sort(key=lambda one: one[:2])
            if self.due and self.due[0][0] <= tick_s:
                self.now, _, what = self.due.pop(0)
                if isinstance(what, str):
                    self.ended(what)
                elif isinstance(what, tuple):
                    self.call(what[1])
                else:
                    self.feed(what)  # type: ignore[arg-type]
            else:
                self.now = tick_s
                tick_s += REPORT_S
                for key in sorted(self.busy) if not self.pause_s else ():
                    if not self.load(key).busy:
                        self.call(key)
                self.report()
                self.feed(events.Tick())
            for key in self.held:
                self.send(key)

    def check(self) -> None:
        """Kept memory fits the bank, slots are given once, and nothing runs without one unless its
        pool was reported idle when it was called."""
        ledger = self.machine.cluster.ledger
        for bank in {one.bank for one in self.devices}:
            kept_mib = sum(ledger.charge_of(id).memory_mib for id in ledger.in_bank(bank))
            assert kept_mib <= ledger.size_mib(bank) - RESERVE_MIB + 1e-6
        for device in self.devices:
            assert ledger.free_share(device.id) >= -1e-9
        for replica in self.machine.replicas():
            load = self.machine.cluster.demand.load(replica.pool)
            runs = replica.state is not State.READY or (load.busy and not replica.is_paused)
            is_leaving = replica.state in (State.DRAINING, State.RELEASING)
            assert ledger.has_slot(replica.id) or not runs or is_leaving

    def running(self) -> int:
        """Return how many replicas have open calls or start."""
        starting = sum(one.is_coming for one in self.machine.replicas())
        return starting + sum(bool(calls) for calls in self.opened.values())

    def longest_wait_s(self) -> float:
        return max(
            later - earlier
            for key in self.busy
            for earlier, later in itertools.pairwise([*self.served[key], self.now])
        )


def kept(count: int, **settings: float) -> list[PoolSpec]:
    """Return the specs of `count` functions that are kept."""
    return [
        PoolSpec(f"f{n:03}", min=1, memory_mib=MIB, load_s=LOAD_S, **settings)  # type: ignore[arg-type]
        for n in range(count)
    ]


def test_thirty_kept_functions_on_two_slots() -> None:
    """All are warm, each is called and sent at once, and none is stopped."""
    play = Gateway(slots(2, 30), kept(30))
    play.go(60.0)
    assert all(play.machine.pools[spec.key].is_warm for spec in play.specs)

    for spec in play.specs:
        assert play.call(spec.key), "no round trip to the manager before the call is sent"
        play.go(2.0)

    assert (play.starts, play.drains) == (30, 0)


def test_a_start_takes_a_slot() -> None:
    """No more replicas start at once than there are slots, however much memory there is."""
    play = Gateway(slots(2, 30), kept(10))
    for _ in range(30):
        play.go(1.0)
        assert sum(one.is_coming for one in play.machine.replicas()) <= 2


def test_too_many_called_at_once_take_turns_without_a_start() -> None:
    """Thirty kept functions that are always called share two slots, and nothing is loaded anew."""
    play = Gateway(slots(2, 30), kept(30))
    play.go(60.0)
    play.busy = {spec.key for spec in play.specs}
    play.go(20.0)
    for _ in range(600):
        play.go(1.0)
        assert play.running() <= 2

    assert (play.starts, play.drains) == (30, 0)
    assert play.longest_wait_s() <= 15 * TURN_S + PREEMPT_AFTER_S


def test_short_calls_run_on_slots_only() -> None:
    """Functions that are called again soon after each answer leave their slot with it: they wait
    for the next one, and do not run beside the others until that is reported."""
    play = Gateway(slots(2, 30), kept(30), run_s=0.2)
    play.go(60.0)
    play.busy, play.pause_s = {spec.key for spec in play.specs}, 0.05
    for key in play.busy:
        play.call(key)
    play.go(20.0)
    play.served = {spec.key: [play.now] for spec in play.specs}
    for _ in range(600):
        play.go(0.1)
        assert play.running() <= 2

    assert (play.starts, play.drains) == (30, 0)
    assert play.longest_wait_s() <= 15 * (play.run_s + REPORT_S) + PREEMPT_AFTER_S


@given(
    functions=st.integers(1, 8),
    count=st.integers(1, 3),
    room=st.integers(1, 8),
    floor=st.integers(0, 1),
    run_s=st.sampled_from([0.01, 0.5, 3.0, 100.0]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
@pytest.mark.slow
def test_busy_functions_are_served_in_turns(
    functions: int, count: int, room: int, floor: int, run_s: float
) -> None:
    """F functions that are always called, on any number of slots and with any room: each is served
    again within F turns. Where `min` keeps them, only as many are asked as have room."""
    kept_most = min(functions, room) if floor else functions
    specs = [PoolSpec(f"f{n}", min=floor, memory_mib=MIB, load_s=LOAD_S) for n in range(kept_most)]
    play = Gateway(slots(count, room), specs, run_s)
    play.busy = {spec.key for spec in specs}
    turn_s = TURN_S + min(run_s, 2 * DRAIN_S + 1.0) + LOAD_S

    play.go(2.5 * len(specs) * turn_s)

    assert play.longest_wait_s() <= max(len(specs), 1) * turn_s + PREEMPT_AFTER_S + run_s


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.1, 1.0, 20.0])), max_size=60
    ),
    count=st.integers(1, 3),
    room=st.integers(2, 8),
    run_s=st.sampled_from([0.01, 0.5, 3.0]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_calls_are_all_served(
    calls: list[tuple[int, float]], count: int, room: int, run_s: float
) -> None:
    """Calls at random end all, whatever is kept; slots and memory are never given twice (`check`),
    and once nothing is called, nobody is paused."""
    specs = [PoolSpec(f"f{n}", memory_mib=MIB, load_s=LOAD_S) for n in range(8)]
    play = Gateway(slots(count, room), specs, run_s)
    for number, pause_s in calls:
        play.call(f"f{number}")
        if pause_s:
            play.go(pause_s)

    play.go(8 * (TURN_S + run_s) * 8 / count + 60.0 * run_s)

    assert not any(play.held.values())
    assert not any(one.is_paused for one in play.machine.replicas())


@pytest.mark.parametrize("first", range(5))
def test_each_order_of_calls_and_pauses_ends(first: int) -> None:
    """Exhaustive: three functions, one slot, memory for two, every order of four steps, each a call
    or a pause: all calls are served, and nobody stays paused."""
    for rest in itertools.product(range(5), repeat=3):
        specs = [PoolSpec(f"f{n}", memory_mib=MIB, load_s=LOAD_S) for n in range(3)]
        play = Gateway(slots(1, 2), specs, 3.0)
        for step in (first, *rest):
            if step < len(specs):
                play.call(f"f{step}")
            play.go((0.2, 0.2, 0.2, 3.0, 12.0)[step])

        play.go(80.0)

        assert not any(play.held.values()), (first, *rest)
        assert not any(one.is_paused for one in play.machine.replicas()), (first, *rest)
