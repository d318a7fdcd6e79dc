"""Property tests of fairness: with more busy functions than devices each is served in time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    Launch,
    Quiesce,
    Release,
    Resume,
    Terminate,
)
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S, SERVER_RESIDENCY_MAX_S
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec, State
from registry.exchange import Demand, Load

TICK_S = 1.0
LOADING = (State.STARTING, State.STANDBY, State.LOADING)


@dataclass
class Turns:
    """Machine with processes that take time, and clients that never stop calling.

    Connecting and loading take `load_s`; a drained replica needs `drain_s` to finish its calls; a
    pool without a ready replica holds one request, one with a ready replica runs one. A process
    that gets TERM ends within a second.
    """

    devices: list[Device]
    specs: list[PoolSpec]
    load_s: float
    drain_s: float
    now: float = 1000.0
    due: list[tuple[float, int, events.Event]] = field(default_factory=list)
    served: dict[str, list[float]] = field(default_factory=dict)
    resumed: int = 0
    ended: int = 0
    loading_s: float = 0.0

    def __post_init__(self) -> None:
        numbers, self.order = itertools.count(1), itertools.count()
        self.machine = Machine(self.devices, lambda: f"r{next(numbers)}")
        self.seqs = itertools.count(1)
        self.served = {spec.key: [self.now] for spec in self.specs}
        for spec in self.specs:
            self.feed(events.PoolDefined(spec))
        self.feed(events.ReplicasListed())

    def feed(self, event: events.Event) -> None:
        for command in self.machine.handle(event, self.now):
            self.obey(command)

    def later(self, after_s: float, event: events.Event) -> None:
        self.due.append((self.now + after_s, next(self.order), event))

    def obey(self, command: Command) -> None:
        match command:
            case Launch(id):
                self.later(0.5, events.Greeted(id, {"start": 500.0}))
                self.later(
                    self.load_s, events.Loaded(id, 4, True, 80.0, {"load": self.load_s * 1e3})
                )
            case Drain(id, None) | Quiesce(id):
                self.later(self.drain_s, events.Lost(id, "exit 0"))
            case Resume(id):
                end = events.Lost(id, "exit 0")
                self.due = [one for one in self.due if one[2] != end]
                self.resumed += 1
                self.later(0.01, events.NotIdle(id, 0.0))
            case Terminate(id):
                self.ended += 1
                self.later(1.0, events.Lost(id, "exit 0"))
            case Drain(id):
                self.later(0.01, events.NotIdle(id, 0.0))
            case Release(id):
                self.later(0.2, events.Released(id))

    def go(self, seconds: float) -> None:
        """Let `seconds` pass, with every event at its time and a tick every second."""
        end_s, tick_s = self.now + seconds, self.now
        while self.now < end_s:
            self.due.sort()
            if self.due and self.due[0][0] <= tick_s:
                self.now, _, event = self.due.pop(0)
                self.feed(event)
                continue
            self.now = tick_s
            tick_s += TICK_S
            self.feed(events.DemandReported(Demand("w", next(self.seqs), True, self.loads())))
            self.feed(events.Tick())
            self.note()

    def loads(self) -> dict[str, Load]:
        calls = {True: Load(0, 1, 0.0), False: Load(1, 0, 0.0)}
        pools = self.machine.pools
        return {spec.key: calls[pools[spec.key].is_warm] for spec in self.specs}

    def note(self) -> None:
        for spec in self.specs:
            states = [r.state for r in self.machine.pools[spec.key].replicas.values()]
            if State.READY in states:
                self.served[spec.key].append(self.now)
            self.loading_s += TICK_S * sum(state in LOADING for state in states)

    def longest_wait_s(self) -> float:
        """Return the longest time for which any pool was not served."""
        return max(
            later - earlier
            for times in self.served.values()
            for earlier, later in itertools.pairwise([*times, self.now])
        )


@given(
    functions=st.integers(2, 7),
    devices=st.integers(1, 6),
    load_s=st.sampled_from([1.0, 4.0, 15.0]),
    drain_s=st.sampled_from([0.1, 3.0, 25.0]),
)
@settings(max_examples=20, deadline=None, derandomize=True)
@pytest.mark.slow
def test_busy_functions_take_turns(
    functions: int, devices: int, load_s: float, drain_s: float
) -> None:
    """F functions that are never idle on D < F devices: each is served again within F times the
    duration of a turn, plus the delay of a preemption."""
    count = min(devices, functions - 1)
    turns = Turns(
        [Device(f"g{number}", "cuda") for number in range(count)],
        [PoolSpec(f"f{number}") for number in range(functions)],
        load_s,
        drain_s,
    )
    turn_s = RESIDENCY_S + drain_s + load_s

    turns.go(6 * functions * turn_s)

    assert turns.longest_wait_s() <= functions * turn_s + PREEMPT_AFTER_S
    assert turns.machine.cluster.ledger.reservations.keys() <= {
        f"g{number}" for number in range(count)
    }


def test_a_large_function_is_not_starved_by_small_ones() -> None:
    """A function that needs a whole device gets it from small ones that share it and are always
    called."""
    turns = Turns(
        [Device("g0", "cuda", 10_000)],
        [PoolSpec("large", memory_mib=9_000.0), *(PoolSpec(f"s{n}", share=0.3) for n in range(3))],
        load_s=2.0,
        drain_s=1.0,
    )

    turns.go(300.0)

    assert turns.longest_wait_s() <= 4 * (RESIDENCY_S + 3.0) + PREEMPT_AFTER_S


def test_memory_freed_for_a_large_function_is_reserved() -> None:
    """A function that needs the memory of two slots gets it although others wait for either
    slot."""
    slots = [Device(f"cpu{number}", "cpu", 2_000, "ram") for number in range(2)]
    turns = Turns(
        slots,
        [PoolSpec("large", memory_mib=1_500.0)]
        + [PoolSpec(f"s{number}", memory_mib=700.0) for number in range(3)],
        load_s=2.0,
        drain_s=1.0,
    )

    turns.go(300.0)

    assert turns.longest_wait_s() <= 4 * (RESIDENCY_S + 3.0) + PREEMPT_AFTER_S


def test_a_function_that_always_refuses_to_drain_is_preempted() -> None:
    """A function that looks idle at every report but refuses each drain does not keep its device
    for ever."""
    turns = Turns([Device("g0", "cuda")], [PoolSpec("a"), PoolSpec("b")], load_s=1.0, drain_s=0.5)
    calls = turns.loads
    turns.loads = lambda: {  # type: ignore[method-assign]
        key: load for key, load in calls().items() if not load.in_flight
    }

    turns.go(200.0)

    assert turns.longest_wait_s() <= 2 * (RESIDENCY_S + 1.5) + PREEMPT_AFTER_S


def test_two_busy_revisions_with_max_1_take_turns() -> None:
    """With `max` 1 two busy revisions are served in turns, although devices are free."""
    turns = Turns(
        [Device(f"g{number}", "cuda") for number in range(3)],
        [PoolSpec("f@1", function="f"), PoolSpec("f@2", function="f")],
        load_s=2.0,
        drain_s=1.0,
    )

    turns.go(200.0)

    assert turns.longest_wait_s() <= 2 * (RESIDENCY_S + 3.0) + PREEMPT_AFTER_S


@pytest.mark.parametrize("is_gone", [True, False])
def test_turns_continue_on_the_remaining_devices(is_gone: bool) -> None:
    """When one of three devices is lost, five busy functions share the other two, and all three
    once it is back."""
    turns = Turns(
        [Device(f"g{number}", "cuda") for number in range(3)],
        [PoolSpec(f"f{number}") for number in range(5)],
        load_s=2.0,
        drain_s=3.0,
    )
    turn_s = RESIDENCY_S + 5.0
    turns.go(60.0)
    turns.feed(events.DeviceLost("g1", "XID 79", is_gone))

    turns.go(120.0)

    assert [one.id for one in turns.machine.replicas() if "g1" in one.devices] == []
    assert turns.longest_wait_s() <= 5 * turn_s + PREEMPT_AFTER_S
    turns.feed(events.DeviceBack("g1"))
    turns.go(60.0)
    assert {one.devices for one in turns.machine.replicas()} == {("g0",), ("g1",), ("g2",)}
    assert turns.longest_wait_s() <= 5 * turn_s + PREEMPT_AFTER_S


def servers(count: int, drain_s: float = 60.0) -> list[PoolSpec]:
    """Return specs of server functions."""
    return [PoolSpec(f"f{n}", is_server=True, target=8, drain_s=drain_s) for n in range(count)]


@given(
    functions=st.integers(2, 4),
    models=st.integers(0, 2),
    devices=st.integers(1, 4),
    load_s=st.sampled_from([1.0, 15.0, 40.0]),
    stream_s=st.sampled_from([0.1, 25.0, 600.0]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
@pytest.mark.slow
def test_busy_servers_take_turns(
    functions: int, models: int, devices: int, load_s: float, stream_s: float
) -> None:
    """Servers whose callers never stop, beside models: each is served again within as many turns
    as there are functions. A turn is a start, the residency, and the end of the open streams,
    which `drain_s` bounds."""
    drain_s = 60.0
    both = [*servers(functions, drain_s), *(PoolSpec(f"m{n}") for n in range(models))]
    count = min(devices, len(both) - 1)
    turns = Turns([Device(f"g{number}", "cuda") for number in range(count)], both, load_s, stream_s)
    residency_s = min(SERVER_RESIDENCY_MAX_S, max(RESIDENCY_S, load_s))
    turn_s = residency_s + min(stream_s, drain_s + 1.0) + load_s + 1.0

    turns.go(3 * len(both) * turn_s)

    assert turns.longest_wait_s() <= len(both) * turn_s + PREEMPT_AFTER_S
    assert bool(turns.ended) == (stream_s > drain_s)


def test_slow_servers_serve_for_as_long_as_they_load() -> None:
    """Three servers that start for 120 s share one device: it does not load for ever."""
    turns = Turns([Device("g0", "cuda")], servers(3), load_s=120.0, drain_s=5.0)

    turns.go(3600.0)

    assert turns.longest_wait_s() <= 3 * (2 * 120.0 + 6.0) + PREEMPT_AFTER_S
    assert turns.loading_s <= 3600.0 * 0.55


def test_one_claim_stops_one_server() -> None:
    """A function that waits for one of four busy servers takes no other one out of service."""
    turns = Turns(
        [Device(f"g{number}", "cuda") for number in range(4)],
        servers(5, drain_s=600.0),
        load_s=1.0,
        drain_s=300.0,
    )
    turns.go(60.0)
    states = [one.state for one in turns.machine.replicas()]

    assert sorted(states) == [State.DRAINING, State.READY, State.READY, State.READY]
    turns.go(2000.0)
    assert turns.longest_wait_s() <= 5 * 320.0


def test_a_claim_that_ends_gives_the_server_back() -> None:
    """Callers that give up before a stream has ended cost the server's callers no cold start."""
    turns = Turns([Device("g0", "cuda")], servers(2, drain_s=600.0), load_s=1.0, drain_s=600.0)
    calls = turns.loads
    turns.loads = lambda: {  # type: ignore[method-assign]
        key: load for key, load in calls().items() if key == "f0" or turns.now % 100 < 20
    }

    turns.go(1000.0)

    assert turns.resumed >= 9
    assert turns.ended == 0
    assert len(turns.machine.replicas()) == 1
