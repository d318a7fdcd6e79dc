"""The simulated world for benchmarks: a population of functions, and the cost of decisions."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from typing import Any, Self

from admin.advice import simulation
from benchmarks.simulation.figures import as_report, spread
from benchmarks.simulation.functions import population
from benchmarks.simulation.settings import Settings
from pool_manager.core import commands, events


class World(simulation.World):
    """One run. `run` simulates it to the end; `report` returns its figures.

    `decisions_s` are CPU seconds inside `Machine.handle`, by kind of event.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.real_s = 0.0
        self.decisions_s: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        super().__init__(settings, population(settings))
        self.decisions_s.clear()

    def run(self) -> Self:
        """Simulate the whole day."""
        began = time.perf_counter()
        super().run()
        self.real_s = time.perf_counter() - began
        return self

    def decide(self, event: events.Event) -> list[commands.Command]:
        """Let the machine decide, and record the CPU time."""
        began = time.process_time()
        asked = super().decide(event)
        self.decisions_s[_kind(event)].append(time.process_time() - began)
        return asked

    def report(self) -> dict[str, Any]:
        """Return the figures of the run as plain data."""
        devices_s = self.settings.devices * self.clock.now
        kinds = sorted(self.decisions_s.items())
        return {
            **as_report(self.figures, devices_s),
            "decisions": {kind: spread(values) for kind, values in kinds},
            "simulated_s": self.clock.now,
            "ticks_skipped": self.figures.ticks_skipped,
            "real_s": self.real_s,
        }


def _kind(event: events.Event) -> str:
    if isinstance(event, events.DemandReported):
        return "demand, full" if event.demand.full else "demand, edge"
    return "tick" if isinstance(event, events.Tick) else "replica event"
