"""Machine, dispatcher, processes and callers under one virtual clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from math import ceil, inf
from typing import Any, Self

from admin.replay.callers import Callers
from admin.replay.clock import Clock
from admin.replay.conditions import Conditions
from admin.replay.figures import Figures
from admin.replay.fleet import Fleet
from admin.replay.function import Function
from pool_manager.core import commands, events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device

TICK_S = 1.0
DEMAND_AT_S = 0.5
"""The gateway speaks between two ticks: both clocks run by themselves."""


class World:
    """One run. `run` plays it to the end; `figures` are what came of it."""

    def __init__(self, conditions: Conditions, functions: Iterable[Function]) -> None:
        self.conditions = conditions
        self.clock = Clock()
        self.figures = Figures()
        numbers = itertools.count(1)
        self.functions: dict[str, Function] = {one.key: one for one in functions}
        new_id, standbys = (lambda: f"r{next(numbers)}"), conditions.standbys
        self.machine = Machine(_devices(conditions), new_id, standbys)
        self.fleet = Fleet(conditions, self.clock, self.functions, self.feed, self.figures)
        self.callers = Callers(conditions, self.clock, self.fleet, self.feed, self.figures)
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
            self.feed(events.PoolDefined(function.spec(conditions)))
        self.feed(events.ListRead())
        for function in self.functions.values():
            self.callers.expect(function)

    def run(self) -> Self:
        """Play the whole day."""
        second, is_active = 0, True
        while second < self.conditions.horizon_s + self.conditions.end_s:
            self._until(second + DEMAND_AT_S)
            is_active = self.callers.tell_all()
            self._until(second + TICK_S)
            self.feed(events.Tick())
            second += 1
            if self.conditions.skip and not is_active:
                second = self._skip(second)
        for process in self.fleet.processes.values():
            self.figures.gone(process, self.clock.now)
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
        to = max(second, ceil(min(self.clock.next_s(), quiet_s, self.conditions.horizon_s)) - 1)
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
        for command in self.decide(event):
            action = self._actions.get(type(command))
            if action is not None:
                action(command)

    def decide(self, event: events.Event) -> list[commands.Command]:
        """What the machine commands because of an event."""
        return self.machine.handle(event, self.clock.now)

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


def _devices(conditions: Conditions) -> list[Device]:
    kind, size = conditions.device_kind, conditions.device_mib
    bank = "host" if kind == "cpu" else ""
    total = size * conditions.devices if bank else size
    return [Device(f"{kind}:{n}", kind, total, bank) for n in range(conditions.devices)]
