"""A play of parks: the real machine, its ledger and policy under a virtual clock, beside a model of
what really is in each process, in the memory of each device and of each host.

`python -m tests.support.park_play --cycles 10000` plays the full dose and prints what was injected.
Engines fail in the ways of FAULTS, their sidecars answer late, twice and never, hosts and devices
are lost, managers are restarted and shut down, functions are redeployed, removed and scaled.
"""

from __future__ import annotations

import itertools
from random import Random

from tests.support.park_play.world import World


def play(
    seed: int, faults: float, rounds: int = 40, cycles: int | None = None, rate: float = 0.25
) -> World:
    """Play a history of `rounds` rounds of some seconds, or of as many as `cycles` parks take, with
    faults; then callers of each function until all were served."""
    world = World(Random(seed), faults)
    names = list(world.specs)
    for at in itertools.count():
        if at >= rounds if cycles is None else world.wakes["right"] >= cycles:
            break
        for name in names:
            world.called[name] = world.chance(rate)
        if world.chance(min(0.5, faults)):
            world.disturb()
        world.redeploy_switched_off()
        world.go(world.random.choice((3.0, 6.0, 12.0, 30.0)))
    world.settle()
    world.served.clear()
    for name in names:
        world.called = dict.fromkeys(names, False) | {name: True}
        world.go(150.0)
    return world
