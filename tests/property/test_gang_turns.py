"""Property tests of turns between replicas on several GPUs and those on one: each is served in
time, and none is started on a part of its devices."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S, SERVER_RESIDENCY_MAX_S
from pool_manager.core.state import Device, PoolSpec
from tests.property.test_turns import Turns
from tests.support.doses import amount


@dataclass
class GangTurns(Turns):
    """Turns in which each replica must have all of its devices, alone."""

    def note(self) -> None:
        super().note()
        taken: dict[str, str] = {}
        for replica in self.machine.replicas():
            assert len(replica.devices) == self.machine.pools[replica.pool].spec.count
            assert replica.devices == tuple(sorted(set(replica.devices)))
            for device in replica.devices:
                assert device not in taken, f"{device} has {taken[device]} and {replica.id}"
                taken[device] = replica.id


def drawn(seed: int) -> tuple[GangTurns, float]:
    """Return turns on 2 to 8 devices, of 1 to 3 functions on several and 0 to 6 on one, models and
    servers, and the longest time in which each must be served again."""
    pick = random.Random(seed)
    count = pick.randint(2, 8)
    load_s = pick.choice([1.0, 4.0, 15.0, 40.0])
    drain_s = pick.choice([0.1, 3.0, 25.0, 600.0])
    is_server = drain_s > 30.0
    specs = [
        PoolSpec(f"gang{n}", count=pick.randint(2, count), is_server=True, drain_s=60.0)
        if is_server or pick.random() < 0.5
        else PoolSpec(f"gang{n}", count=pick.randint(2, count))
        for n in range(pick.randint(1, 3))
    ]
    specs += [
        PoolSpec(f"one{n}", is_server=is_server or pick.random() < 0.3, drain_s=60.0)
        for n in range(pick.randint(0, 6))
    ]
    devices = [Device(f"g{n}", "cuda") for n in range(count)]
    residency_s = max(RESIDENCY_S, min(SERVER_RESIDENCY_MAX_S, load_s))
    turn_s = residency_s + min(drain_s, 61.0) + load_s + 1.0
    bound_s = len(specs) * turn_s + PREEMPT_AFTER_S
    return GangTurns(devices, specs, load_s, drain_s), bound_s


@pytest.mark.parametrize("seed", range(amount(12, 120)))
def test_each_is_served_within_as_many_turns_as_there_are_functions(seed: int) -> None:
    """F functions, all always called: each is served again within F turns of load, residency and
    drain, and the delay of a preemption."""
    turns, bound_s = drawn(seed)

    turns.go(5 * bound_s)

    assert turns.longest_wait_s() <= bound_s
