"""The meter sees every change of a replica, and what it adds up is kept."""

from __future__ import annotations

import itertools
from typing import Any

from pool_manager.core import events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec
from pool_manager.usage import KEEP_S, UseWatch
from registry.exchange import Demand, Load
from registry.model import ColdStart, StateInterval, Use
from tests.support.replicas import KEY, binding

UNIX_S = 6000.0
"""At second 0 of the rig's clock."""


class Records:
    """Keeps the use."""

    def __init__(self) -> None:
        self.use_kept: list[Use] = []

    def cold_start(self, record: ColdStart) -> None:
        """Not looked at here."""

    def state_interval(self, record: StateInterval) -> None:
        """Not looked at here."""

    def use(self, record: Use) -> None:
        self.use_kept.append(record)


class Rig:
    """A machine with one GPU, its events fed by hand, as the manager feeds them."""

    def __init__(self, gpu_standbys: int = 0) -> None:
        self.now, self.jump_s = 0.0, 0.0
        numbers = itertools.count(1)
        device = Device("cuda:0", "cuda", 80_000.0)
        self.machine = Machine([device], lambda: f"r{next(numbers)}", 0, gpu_standbys)
        self.records = Records()
        self.watch = UseWatch(
            self.machine,
            {KEY: binding()},
            self.records,
            lambda: self.now,
            lambda: UNIX_S + self.now + self.jump_s,
        )

    def feed(self, event: events.Event, after_s: float = 0.0) -> list[str]:
        """Ids that the commands name."""
        self.now += after_s
        commands = self.machine.handle(event, self.now)
        self.watch.look(event)
        for command in commands:
            self.watch.look(command)
        return [command.id for command in commands if hasattr(command, "id")]

    def begin(self) -> None:
        self.feed(events.PoolDefined(PoolSpec(KEY, idle_s=60.0)))
        self.feed(events.ReplicasListed())
        self.ask()

    def ask(self) -> None:
        load = {KEY: Load(1, 0, 0.0)}
        self.feed(events.DemandReported(Demand("w", 1, True, load)))

    def kept(self) -> dict[str, Any]:
        """What was kept since the last time, by name: number and seconds."""
        self.watch.keep()
        kept, self.records.use_kept = self.records.use_kept, []
        return {
            one.name: (one.number, round(one.waking_s, 3), round(one.idle_s, 3), one.busy_s)
            for one in kept
        }


LOADED = events.Loaded("r1", 2, True, 100.0, {})


def test_a_life_from_launch_to_release() -> None:
    """Starting and loading are waking; what it says it ran is busy; a release is nobody's."""
    rig = Rig()
    rig.begin()
    rig.feed(events.Greeted("r1", {}), 2.0)
    rig.feed(LOADED, 1.0)
    rig.now += 5.0
    rig.watch.hear("r1", 1500)
    busy = rig.watch.busy("cuda:0")
    rig.feed(events.Lost("r1", "exit 0"), 1.0)
    rig.feed(events.Released("r1"), 4.0)

    assert busy == 0.3
    assert rig.kept() == {"digits": (1, 3.0, 4.5, 1.5)}
    assert rig.watch.busy("cuda:0") == 0.0


def test_a_standby_is_nobodys_until_it_is_given_away() -> None:
    """Also one that is given away while it starts, which no command tells of."""
    rig = Rig(gpu_standbys=1)
    rig.feed(events.PoolDefined(PoolSpec(KEY, idle_s=60.0)))
    rig.feed(events.ReplicasListed())
    rig.feed(events.DemandReported(Demand("w", 1, True, {})))
    rig.now += 2.0
    rig.ask()
    rig.watch.tick()
    rig.now += 1.0

    assert rig.kept() == {"": (0, 2.0, 0.0, 0.0), "digits": (1, 1.0, 0.0, 0.0)}


def test_what_is_adopted_counts_from_then_on() -> None:
    """What it ran before is not this server's to tell; one that nobody knows a binding of has its
    pool's name."""
    rig = Rig()
    rig.feed(events.PoolDefined(PoolSpec(KEY)))
    rig.feed(events.PoolDefined(PoolSpec("default/gone@4")))
    rig.feed(events.Found("r1", KEY, "cuda:0"))
    rig.feed(events.Found("r2", "default/gone@4", "cuda:0"))
    rig.feed(events.ReplicasListed())
    rig.feed(events.Greeted("r1", {}, loaded=True), 0.5)
    rig.feed(LOADED)
    rig.now += 2.0
    rig.watch.hear("r1", 4_000_000_000)
    rig.now += 2.0
    rig.watch.hear("r1", 4_000_000_500)

    assert rig.kept() == {"digits": (1, 0.5, 3.5, 0.5), "gone": (0, 4.5, 0.0, 0.0)}


def test_it_is_handed_over_every_ten_seconds() -> None:
    """A clock that is set moves only what comes after."""
    rig = Rig()
    rig.begin()
    rig.now += KEEP_S - 1
    rig.watch.tick()
    before = list(rig.records.use_kept)
    rig.jump_s = 3600.0
    rig.now += 1
    rig.watch.tick()
    rig.now += KEEP_S
    rig.watch.tick()

    assert before == []
    assert [one.minute_s for one in rig.records.use_kept] == [6000, 9600]


def test_what_is_about_no_replica_is_nothing() -> None:
    """Most events are about pools."""
    rig = Rig()
    rig.feed(events.Tick(), 1.0)
    rig.watch.look(object())

    assert rig.kept() == {}
