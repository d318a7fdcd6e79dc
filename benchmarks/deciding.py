"""Cost of single decisions with many functions, measured in this process, without servers."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.filling import name
from pool_manager.core import commands, events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec
from registry.catalog import Catalog
from registry.exchange import Demand, Load
from registry.model.revisions import pool_key
from tests.support.nouns import deployed

ROUNDS = 30


def put_us(count: int) -> float:
    """Return the microseconds to change one of `count` functions in the catalog."""
    catalog = Catalog(deployed(name(number)) for number in range(count))
    one = catalog.resolve(name(count // 2))
    changed = replace(one, function=replace(one.function, created_s=1.0))
    return _median_s(lambda: catalog.put(changed)) * 1e6


def decisions_ms(count: int, active: int) -> tuple[float, float]:
    """Return the milliseconds of a tick with `count` pools, of which `active` are warm and have
    calls, and of the start of one more replica."""
    ids = itertools.count()
    devices = [Device(f"cpu:{number}", "cpu") for number in range(active + ROUNDS)]
    machine = Machine(devices, lambda: f"{next(ids):08x}")
    keys = [pool_key("default", name(number), 1) for number in range(count + ROUNDS)]
    for key in keys:
        machine.handle(events.PoolDefined(PoolSpec(key)), 0.0)
    machine.handle(events.ReplicasListed(), 0.0)
    seq, clock = itertools.count(), itertools.count(1)

    def hear(loads: dict[str, Load]) -> list[commands.Command]:
        demand = Demand("gateway", next(seq), False, loads)
        return machine.handle(events.DemandReported(demand), next(clock) / 1000)

    for command in hear({key: Load(0, 1, 0.0) for key in keys[:active]}):
        if isinstance(command, commands.Launch):
            machine.handle(events.Greeted(command.id, {}), 0.0)
            machine.handle(events.Loaded(command.id, 2, True, 50.0, {}), 0.0)
    tick_s = _median_s(lambda: machine.handle(events.Tick(), next(clock) / 1000))
    cold = iter(keys[-ROUNDS:])
    start_s = _median_s(lambda: hear({next(cold): Load(1, 0, 0.0)}))
    assert len(machine.replicas()) == active + ROUNDS
    return tick_s * 1e3, start_s * 1e3


def _median_s(run: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
