"""Property tests of builds: in any history, they delay no pool and no standby."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pool_manager.core import events
from pool_manager.core.commands import (
    Assign,
    Command,
    Drain,
    EndBuild,
    EndTrial,
    Launch,
    Note,
    Quiesce,
    Release,
    Terminate,
)
from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.core.machine import Machine
from pool_manager.core.placement import find_device
from pool_manager.core.pool import Pool
from pool_manager.core.state import Device, PoolSpec, Replica, State
from registry.exchange import Demand, Load
from tests.support.doses import amount

CONNECT_S, LOAD_S, DRAIN_S, RELEASE_S, BUILD_S = 0.5, 2.0, 1.0, 0.2, 20.0
DEVICES = [
    Device("cpu0", "cpu", 4_000, "ram"),
    Device("cpu1", "cpu", 4_000, "ram"),
    Device("gpu0", "cuda", 8_000),
    Device("gpu1", "cuda", 3_000),
]


@dataclass
class Play:
    """A machine whose processes take time. Every invariant is checked after every event."""

    specs: list[PoolSpec]
    devices: list[Device]
    standbys: int = 0
    now: float = 1000.0
    due: list[tuple[float, int, events.Event]] = field(default_factory=list)
    queued: dict[str, int] = field(default_factory=dict)
    ended: list[EndBuild] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    trials: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        numbers, self.order = itertools.count(1), itertools.count()
        self.seqs = itertools.count(1)
        self.machine = Machine(
            self.devices, lambda: f"r{next(numbers)}", self.standbys, self.standbys
        )
        for spec in self.specs:
            self.feed(events.PoolDefined(spec))
        self.feed(events.ReplicasListed())
        self.report()

    def later(self, after_s: float, event: events.Event) -> None:
        self.due.append((self.now + after_s, next(self.order), event))

    def feed(self, event: events.Event) -> None:
        for command in self.machine.handle(event, self.now):
            self.obey(command)
        self.check()

    def obey(self, command: Command) -> None:
        match command:
            case Launch(id):
                if command.role == "build":
                    self.check_begin(command)
                self.later(CONNECT_S, events.Greeted(id, {"start": 500.0}))
                if command.role != "standby":
                    takes_s = BUILD_S if command.role == "build" else LOAD_S
                    self.later(CONNECT_S + takes_s, events.Loaded(id, 4, True, 100.0, {}, {"r": 1}))
            case Assign(id):
                self.later(LOAD_S, events.Loaded(id, 4, True, 100.0, {}, {"r": 1}))
            case Drain(id) | Quiesce(id):
                assert self.machine.replica(id).role != "build"  # type: ignore[union-attr]
                self.later(DRAIN_S, events.Lost(id, "exit 0"))
            case Release(id) | Terminate(id):
                self.later(RELEASE_S, events.Released(id))
            case EndBuild():
                self.ended.append(command)
            case Note(text=text):
                assert not text.endswith(tuple(f"for {key}" for key in self.asked)), text
            case EndTrial(key):
                self.trials.discard(key)
                self.later(0.0, events.PoolRemoved(key))

    def report(self) -> None:
        """Report the calls of every pool: they run where a replica is ready."""
        loads = {}
        for key, count in self.queued.items():
            is_warm = self.machine.pools[key].is_warm
            loads[key] = Load(0, count, 0.0) if is_warm else Load(count, 0, 0.0)
        demand = Demand("w", next(self.seqs), True, loads, list(loads))
        self.feed(events.DemandReported(demand))

    def go(self, seconds: float) -> None:
        """Let `seconds` pass; ticks come each second."""
        end_s = self.now + seconds
        for tick_s in itertools.count(self.now + 1.0):
            while (first := min(self.due, default=None)) and first[0] <= min(tick_s, end_s):
                self.due.remove(first)
                self.now = first[0]
                self.feed(first[2])
            if tick_s > end_s:
                break
            self.now = tick_s
            self.report()
            self.feed(events.Tick())
            self.check_standbys()
        self.now = end_s

    # Invariants

    @property
    def builds(self) -> list[Replica]:
        return [one for one in self.machine.replicas() if one.role == "build"]

    def check(self) -> None:
        cluster, ledger = self.machine.cluster, self.machine.cluster.ledger
        running = [one for one in self.builds if one.state is not State.RELEASING]
        for one in running:
            (device,) = one.devices
            assert ledger.on(device) == [one.id], "a build shares its device"
            assert device not in ledger.reservations, "a build is in a reserved place"
        for key in cluster.blocked - cluster.build_pools.keys():
            self.check_waiter(self.machine.pools[key], running)
        keys = [one.key for one in self.ended]
        assert len(keys) == len(set(keys)), "a build ended twice"

    def check_begin(self, build: Launch) -> None:
        """A build does not begin on a device that a pool waits for, whatever the reason for the
        wait: calls, trials and floors without a replica. It leaves the memory of missing
        standbys."""
        (device,) = (one for one in self.devices if one.id in build.devices)
        for pool in self.machine.pools.values():
            key, role = pool.key, pool.spec.role
            is_waited_for = key in self.trials or pool.spec.min or self.queued.get(key)
            if role in ("build", "standby") or not is_waited_for or pool.count():
                continue
            is_of_kind = pool.spec.device_kind in ("any", device.kind)
            is_held = pool.memory_mib + RESERVE_MIB <= (device.memory_mib or inf)
            assert not (is_of_kind and is_held), f"{build} begins, {key} waits"
        cluster = self.machine.cluster
        for key, place in cluster.standby_places.items():
            standbys = cluster.pools[key]
            bank, each_mib = cluster.standby_charge(place.device, place.host)
            missing_mib = each_mib * max(0, standbys.spec.max - standbys.count())
            if missing_mib and bank == device.bank:
                assert cluster.ledger.free_mib(bank, key) >= missing_mib, f"{build} begins"

    def check_waiter(self, pool: Pool, running: list[Replica]) -> None:
        """A pool that waits and may start does not wait for a build, unless builds that are ending
        make room for it."""
        evictor, ledger = self.machine._supply.evictor, self.machine.cluster.ledger
        # A back-off that has just ended is noticed by the next Tick.
        may_start = self.now >= pool.retry_at_s + 1.0 and not evictor.other_revisions(pool)[1]
        if not running or not may_start:
            return
        leaving = [one.id for one in self.builds if one.is_leaving]
        gone = [*evictor.reusable(pool, self.machine.cluster.need(pool)), *leaving]
        need = self.machine.cluster.need(pool)
        would_start = find_device(need, ledger, [*gone, *(one.id for one in running)])
        starts = find_device(need, ledger, gone)
        assert would_start is None or starts is not None, (pool.key, pool.blocked)

    def check_standbys(self) -> None:
        """After a Tick, no standby is missing for the memory of a build."""
        cluster, ledger = self.machine.cluster, self.machine.cluster.ledger
        builds = self.builds
        if any(one.state is State.RELEASING for one in builds):
            return
        for key, place in cluster.standby_places.items():
            pool = self.machine.pools[key]
            bank, memory_mib = cluster.standby_charge(place.device, place.host)
            may_start = self.now >= pool.retry_at_s and place.device not in ledger.cordons
            if may_start and pool.count() < pool.spec.max:
                ids = [one.id for one in builds]
                would_have = ledger.free_mib(bank, key, ids) >= memory_mib
                assert not would_have or ledger.free_mib(bank, key) >= memory_mib, key

    def step(self, what: str, one: int, other: int) -> None:
        """Carry out one of STEPS."""
        replicas = self.machine.replicas()
        coming = [one for one in replicas if one.is_coming and one.role == "serve"]
        match what:
            case "call":
                self.queued[self.specs[one % len(self.specs)].key] = other
                self.report()
            case "build":
                self.request(0, str(one), other)
            case "trial":
                key = f"t{next(self.order)}@trial"
                self.trials.add(key)
                self.feed(events.PoolDefined(PoolSpec(key, device_kind=str(one), role="trial")))
            case "lose" if replicas:
                self.feed(events.Lost(replicas[one % len(replicas)].id, "exit 1"))
            case "fail" if coming:
                self.feed(events.Lost(coming[one % len(coming)].id, "exit 1"))
            case "cancel" if self.asked:
                self.feed(events.PoolRemoved(self.asked[one % len(self.asked)]))
            case "cordon":
                device = self.devices[one % len(self.devices)].id
                lost = events.DeviceLost(device, "XID 48", False)
                self.feed(lost if other else events.DeviceBack(device))
            case "go":
                self.go(one)

    def request(self, number: int, kind: str, memory_mib: float) -> None:
        key = f"f{number}-build{len(self.asked)}"
        self.asked.append(key)
        spec = PoolSpec(key, role="build", device_kind=kind, memory_mib=memory_mib)
        self.feed(events.PoolDefined(spec))


FUNCTIONS = st.lists(
    st.builds(
        PoolSpec,
        st.just(""),
        min=st.integers(0, 1),
        max=st.integers(1, 2),
        idle_s=st.sampled_from([3.0, 60.0]),
        device_kind=st.sampled_from(["any", "cpu", "cuda"]),
        share=st.sampled_from([0.3, 1.0]),
        memory_mib=st.sampled_from([0.0, 500.0, 2_500.0]),
        load_s=st.just(LOAD_S),
    ),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 3), st.integers(0, 6)),
        st.tuples(
            st.just("build"),
            st.sampled_from(["any", "cpu", "cuda"]),
            st.sampled_from([0.0, 700.0, 2_500.0, 3_600.0, 3_700.0]),
        ),
        st.tuples(st.just("trial"), st.sampled_from(["cpu", "cuda"]), st.just(0)),
        st.tuples(st.sampled_from(["lose", "fail"]), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("cordon"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("go"), st.sampled_from([0.1, 1.0, 4.0, 15.0]), st.just(0)),
    ),
    min_size=20,
    max_size=40,
)


@given(FUNCTIONS, STEPS, st.integers(0, 1), st.sampled_from([DEVICES, DEVICES[:1], DEVICES[1:3]]))
@example(
    [PoolSpec("", device_kind="cpu")],
    [("go", 4.0, 0), ("build", "cpu", 3_600.0), ("go", 1.0, 0), ("call", 0, 1), ("go", 15.0, 0)],
    1,
    DEVICES,
)
@example(
    [PoolSpec("", device_kind="cpu")],
    [("go", 4.0, 0), ("call", 0, 1), ("build", "cpu", 3_700.0), ("go", 15.0, 0)],
    1,
    DEVICES,
)
@example(
    [PoolSpec("", device_kind="cpu")],
    [("call", 0, 1), ("build", "cpu", 0.0), ("fail", 0, 0), ("go", 0.1, 0), ("go", 15.0, 0)],
    0,
    DEVICES[:1],
)
@settings(max_examples=amount(40, 800), deadline=None, derandomize=True)
@pytest.mark.slow
@pytest.mark.timeout(amount(120, 900))
def test_builds_delay_no_pool_and_no_standby(
    functions: list[PoolSpec],
    steps: list[tuple[str, int, int]],
    standbys: int,
    devices: list[Device],
) -> None:
    """A build never shares a device, never is in a reserved place, never is the reason why a pool
    or a standby waits longer than its release takes, and ends exactly once."""
    play = Play([_named(one, number) for number, one in enumerate(functions)], devices, standbys)
    for step in steps:
        play.step(*step)
    play.queued = dict.fromkeys(play.queued, 0)
    for device in devices:
        play.feed(events.DeviceBack(device.id))
    play.go(200.0)

    waiting = [key for key in play.machine.cluster.build_pools if key in play.asked]
    for key in waiting:
        play.feed(events.PoolRemoved(key))
    play.go(1.0)
    assert play.machine.cluster.build_pools == {}
    assert play.builds == []


def _named(spec: PoolSpec, number: int) -> PoolSpec:
    return replace(spec, key=f"f{number}", function=f"f{number}")


@pytest.mark.parametrize("functions", [1, 2, 3])
@pytest.mark.slow
def test_builds_delay_a_start_by_their_release_alone(functions: int) -> None:
    """Where every function has a device, each call finds one within the release of a build,
    although builds are always requested."""
    specs = [PoolSpec(f"f{number}", idle_s=5.0) for number in range(functions)]
    play = Play(specs, [Device(f"g{number}", "cuda") for number in range(functions)])
    for turn in range(40):
        play.request(turn % functions, "any", 0.0)
        name = f"f{turn % functions}"
        play.go(7.0 + turn * 0.37)
        play.queued[name] = 1
        play.report()
        begun_s = play.now
        while not play.machine.pools[name].count():
            play.go(0.05)
        assert play.now - begun_s <= RELEASE_S + 0.05
        play.go(LOAD_S + 1.0)
        assert play.machine.pools[name].is_warm
        play.queued[name] = 0

    outcomes = [one.outcome for one in play.ended]
    assert {"given_up"} <= set(outcomes) <= {"given_up", "ended"}
