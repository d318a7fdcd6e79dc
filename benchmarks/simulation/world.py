"""Machine, dispatcher, processes and callers under one virtual clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from math import ceil, inf
from typing import Any

from benchmarks.simulation.callers import Callers
from benchmarks.simulation.clock import Clock
from benchmarks.simulation.figures import Figures
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.functions import Function, population
from benchmarks.simulation.settings import Settings
from pool_manager.core import commands, events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device

TICK_S = 1.0
DEMAND_AT_S = 0.5
"""The gateway speaks between two ticks: both clocks run by themselves."""


class World:
    """One run. `run` plays it to the end; `report` is what came of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = Clock()
        self.figures = Figures()
        numbers = itertools.count(1)
        self.functions: dict[str, Function] = {f.key: f for f in population(settings)}
        self.machine = Machine(_devices(settings), lambda: f"r{next(numbers)}", settings.standbys)
        self.fleet = Fleet(settings, self.clock, self.functions, self.feed, self.figures)
        self.callers = Callers(settings, self.clock, self.fleet, self.feed, self.figures)
        self.real_s = 0.0
        self._waiting: list[events.Event] = []
        self._actions: dict[type, Callable[[Any], None]] = {
            commands.Launch: self.fleet.launch,
            commands.Assign: self.fleet.assign,
            commands.Bind: self.fleet.bind,
            commands.Drain: self._drain,
            commands.Terminate: self.fleet.terminate,
            commands.Release: self.fleet.release,
            commands.Publish: self._publish,
        }
        for function in self.functions.values():
            self.feed(events.PoolDefined(function.spec(settings)))
        self.feed(events.ListRead())
        self.figures.decisions_s.clear()
        for function in self.functions.values():
            self.callers.expect(function)

    def run(self) -> World:
        """Play the whole day."""
        began = time.perf_counter()
        second, is_active = 0, True
        while second < self.settings.horizon_s + self.settings.end_s:
            self._until(second + DEMAND_AT_S)
            is_active = self.callers.tell_all()
            self._until(second + TICK_S)
            self.feed(events.Tick())
            second += 1
            if self.settings.skip and not is_active:
                second = self._skip(second)
        for process in self.fleet.processes.values():
            self.figures.gone(process, self.clock.now)
        self.real_s = time.perf_counter() - began
        return self

    def _skip(self, second: int) -> int:
        """The next second in which a tick or a demand could change anything.

        Nothing is held, so each would find every pool as it was until the next event, or until
        time alone changes one.
        """
        host = self.machine.host
        if host.blocked or self.callers.active:
            return second
        quiet_s = min((host.pools[key].quiet_until_s for key in host.live), default=inf)
        to = max(second, ceil(min(self.clock.next_s(), quiet_s, self.settings.horizon_s)) - 1)
        if to - second > 1:
            # A gateway that says nothing for 3 s is forgotten: its word comes before the tick's.
            self.figures.ticks_skipped += to - second
            return to
        return second

    def _until(self, when_s: float) -> None:
        while self.clock.next_s() <= when_s:
            self.clock.step()
            self._settle()
        self.clock.now = when_s

    def _settle(self) -> None:
        """What the gateway has to say at once, it says when the moment's work is done."""
        while self.callers.urgent:
            self.callers.tell_urgent()

    def feed(self, event: events.Event) -> None:
        """One event in, its commands done; what these feed comes after."""
        self._waiting.append(event)
        if len(self._waiting) > 1:
            return
        while self._waiting:
            self._handle(self._waiting[0])
            del self._waiting[0]

    def _handle(self, event: events.Event) -> None:
        began = time.process_time()
        asked = self.machine.handle(event, self.clock.now)
        took_s = time.process_time() - began
        self.figures.decisions_s[_kind(event)].append(took_s)
        for command in asked:
            action = self._actions.get(type(command))
            if action is not None:
                action(command)

    def _drain(self, command: commands.Drain) -> None:
        replica = self.machine.replica(command.id)
        why = replica.why if replica else ""
        self.figures.evictions += why.startswith("evicted")
        self.figures.swaps += why.startswith("gives way")
        self.figures.idle_stops += why.startswith("idle")
        self.fleet.drain(command)

    def _publish(self, command: commands.Publish) -> None:
        for key in sorted(command.keys):
            self.callers.look(key, self.machine.endpoints(key, self.clock.now))

    def report(self) -> dict[str, Any]:
        """Figures of the run as plain data."""
        devices_s = self.settings.devices * self.clock.now
        return {
            **self.figures.report(devices_s),
            "decisions": self.figures.decision_ms(),
            "simulated_s": self.clock.now,
            "ticks_skipped": self.figures.ticks_skipped,
            "real_s": self.real_s,
        }


def _kind(event: events.Event) -> str:
    if isinstance(event, events.DemandCame):
        return "demand, full" if event.demand.full else "demand, edge"
    return "tick" if isinstance(event, events.Tick) else "replica event"


def _devices(settings: Settings) -> list[Device]:
    kind, size = settings.device_kind, settings.device_mib
    bank = "host" if kind == "cpu" else ""
    total = size * settings.devices if bank else size
    return [Device(f"{kind}:{n}", kind, total, bank) for n in range(settings.devices)]
