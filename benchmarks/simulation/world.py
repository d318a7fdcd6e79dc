"""The simulated world for benchmarks: a population of functions, and the cost of decisions."""

from __future__ import annotations

import gc
import time
from array import array
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Self

from admin.advice import simulation
from admin.advice.fleet import Fleet
from admin.advice.load_model import Function
from benchmarks.simulation.figures import GroupFigures, as_report, spread
from benchmarks.simulation.functions import population
from benchmarks.simulation.hosts import HostFleet, PowerLosses
from benchmarks.simulation.mixes import mixed
from benchmarks.simulation.settings import Settings
from pool_manager.core import commands, events
from pool_manager.core.state import Device, PoolSpec

COLLECTION = "(full collection)"
FULL_COLLECTION = 2
"""Generation of the garbage collector that has all objects."""
HOST_EVENTS = (events.HostUp, events.HostUnreachable, events.HostStocked)


class World(simulation.World):
    """One run. `run` simulates it to the end; `report` returns its figures.

    `decisions_s` are CPU seconds inside `Machine.handle`, by kind of event, and those of full
    garbage collections. `kept_empty_s` are device-seconds in which a device was empty and kept for
    a pool whose other victims had not left yet: one sample per tick.
    """

    hosts: HostFleet | None = None
    figures: GroupFigures

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.kept_empty_s = 0
        self.real_s = 0.0
        self.decisions_s: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._collection_s = 0.0
        functions, groups = mixed(settings) if settings.mix else (population(settings), {})
        super().__init__(settings, functions, GroupFigures(groups))
        if self.hosts is not None:
            for event in self.hosts.join():
                self.feed(event)
            if settings.losses:
                PowerLosses(settings, self.clock, self.hosts, self.feed).plan()
        self.decisions_s.clear()

    def local_devices(self) -> list[Device]:
        """Return the devices of the local host: none if there are several hosts."""
        return super().local_devices() if self.settings.hosts == 1 else []

    def open_fleet(self) -> Fleet:
        """Return the driver with its processes, or those of all hosts."""
        if self.settings.hosts == 1:
            return super().open_fleet()
        there = super().local_devices()
        self.hosts = HostFleet(
            self.settings, there, self.clock, self.functions, self.feed, self.figures
        )
        return self.hosts

    def spec(self, function: Function) -> PoolSpec:
        """Return the settings of a function's pool, with its files."""
        spec = super().spec(function)
        return spec if self.hosts is None else self.hosts.with_files(spec, function)

    def run(self) -> Self:
        """Simulate the whole day."""
        # As the server does after its start: the collector would walk all pools again and again.
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._on_collection)
        began = time.perf_counter()
        try:
            super().run()
        finally:
            gc.callbacks.remove(self._on_collection)
            gc.unfreeze()
        self.real_s = time.perf_counter() - began
        return self

    def keep_fastest(self, others: Mapping[str, array[float]]) -> None:
        """Keep the lesser time of each decision of this run and of an equal one."""
        for kind, values in others.items():
            known = self.decisions_s[kind]
            self.decisions_s[kind] = array("d", map(min, known, values)) if known else values

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < FULL_COLLECTION:
            return
        if phase == "start":
            self._collection_s = time.process_time()
        else:
            self.decisions_s[COLLECTION].append(time.process_time() - self._collection_s)

    def _skip(self, second: int) -> int:
        if self.hosts is not None and self.hosts.down:
            return second
        return super()._skip(second)

    def decide(self, event: events.Event) -> list[commands.Command]:
        """Let the machine decide, and record the CPU time."""
        began = time.process_time()
        asked = super().decide(event)
        self.decisions_s[_kind(event)].append(time.process_time() - began)
        if isinstance(event, events.Tick):
            ledger = self.machine.cluster.ledger
            self.kept_empty_s += sum(not ledger.on(device) for device in ledger.reservations)
        return asked

    def report(self) -> dict[str, Any]:
        """Return the figures of the run as plain data."""
        devices_s = self.settings.devices * self.clock.now
        kinds = sorted(self.decisions_s.items())
        return {
            **as_report(self.figures, devices_s, holds_idle=self.settings.device_kind != "cpu"),
            "decisions": {kind: spread(values) for kind, values in kinds},
            **(self.hosts.report() if self.hosts is not None else {}),
            "groups": self.figures.by_group(),
            "parks": self.figures.parks,
            "wakes": self.figures.wakes,
            "kept_empty_share": self.kept_empty_s / devices_s,
            "simulated_s": self.clock.now,
            "ticks_skipped": self.figures.ticks_skipped,
            "real_s": self.real_s,
        }


def _kind(event: events.Event) -> str:
    if isinstance(event, events.DemandReported):
        return "demand, full" if event.demand.full else "demand, edge"
    if isinstance(event, HOST_EVENTS):
        return "host event"
    return "tick" if isinstance(event, events.Tick) else "replica event"
