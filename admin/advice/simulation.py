"""The real `Machine` and `Dispatcher` with simulated processes and callers, in virtual time. Pure.

`Fleet` (`fleet.py`) simulates the driver and its processes, `Callers` the gateway and its clients.
`World` has both, and the clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from math import ceil, inf
from typing import Any, Self

from admin.advice.fleet import Fleet
from admin.advice.load_model import Ask, Clock, Conditions, Figures, Function, Process
from gateway.dispatch.call import Command, Fail, Link, Recall, Send, Stage
from gateway.dispatch.demand import DemandReports
from gateway.dispatch.dispatcher import Dispatcher, Limits
from pool_manager.core import commands, events
from pool_manager.core.events import DemandReported
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec
from registry.errors import FnError
from registry.exchange import Demand, Load, PoolEndpoints
from registry.model.hosts import LOCAL_HOST
from runtime_image.link.meta import RequestMeta

CONNECT_S = 0.001
META = RequestMeta("application/json", "", -1, "")
TICK_S = 1.0
DEMAND_AT_S = 0.5
"""The gateway reports half-way between two ticks, as both clocks are independent."""


class Callers:
    """Calls in, demand out: like the gateway's delivery, but without sockets.

    `urgent` are the pools whose load must be reported at once. Only `active` pools are examined,
    whereas the dispatcher would walk all pools that it has ever seen.
    """

    def __init__(
        self,
        conditions: Conditions,
        clock: Clock,
        fleet: Fleet,
        feed: Callable[[DemandReported], None],
        figures: Figures,
    ) -> None:
        self._conditions = conditions
        self._clock = clock
        self._fleet = fleet
        self._feed = feed
        self._figures = figures
        self._seq = itertools.count(1)
        self.dispatcher = Dispatcher(Limits())
        self.urgent: dict[str, None] = {}
        self._reports = DemandReports(self._load, self._is_cold)
        self.active: dict[str, None] = {}
        self.functions: dict[str, Function] = {}
        self._known: set[str] = set()
        self._last_full: dict[str, Load] = {}
        fleet.attach(self)

    def expect(self, function: Function) -> None:
        """Start the calls of this function."""
        self.functions[function.key] = function
        for _ in range(function.closed):
            self._clock.at(0.0, self._ask, function)
        self._next(function)

    def _next(self, function: Function) -> None:
        when_s = function.advance()
        if when_s <= self._conditions.horizon_s:
            self._clock.at(when_s, self._came, function)

    def _came(self, function: Function) -> None:
        took_s, weight = function.took_s, function.weight
        self._next(function)
        self._submit(function, took_s, weight)

    def _ask(self, function: Function) -> None:
        """Call again after an answer and a pause, until the end of the day."""
        if self._clock.now <= self._conditions.horizon_s:
            self._submit(function, function.service_s)

    def _submit(self, function: Function, took_s: float, weight: int = 1) -> None:
        now = self._clock.now
        server = function.server
        wait_until_s = now + (server.wait_s if server else self._conditions.wait_s)
        ask = Ask(function.key, META, b"", now, wait_until_s, 60.0)
        ask.service_s, ask.weight, ask.of_server = took_s, weight, server is not None
        self._figures.requests += weight
        try:
            commands = self.dispatcher.submit(ask, now)
        except FnError:
            self._figures.refused += weight
            return
        self.active[function.key] = None
        self._figures.held += ask.was_held * weight
        self.perform(commands)
        if ask.was_held:
            self._reports.on_held(function.key)
            self.urgent[function.key] = None
        if ask.stage in (Stage.QUEUED, Stage.SENT):
            self._clock.at(wait_until_s, self._expire, ask)

    def _expire(self, ask: Ask) -> None:
        """Expire a call's wait budget, at the exact time (the real dispatcher sweeps)."""
        if ask.stage in (Stage.QUEUED, Stage.SENT):
            self._figures.gave_up(ask, self._clock.now)
            self.perform(self.dispatcher.cancel(ask, self._clock.now))
            self._answered(ask)

    def _answered(self, ask: Ask) -> None:
        function = self.functions[ask.pool]
        if function.closed:
            self._clock.after(function.draw_pause_s(self._conditions.think_s), self._ask, function)

    # Messages of the manager

    def look(self, key: str, shown: PoolEndpoints) -> None:
        """Apply a pool's endpoints, and connect to new replicas."""
        self.perform(self.dispatcher.on_endpoints(key, shown, self._clock.now))
        for endpoint in shown.replicas:
            if endpoint.id not in self._known:
                self._known.add(endpoint.id)
                link = Link(endpoint.id, key, endpoint.limit, endpoint.marks_started)
                self._clock.after(CONNECT_S, self._connect, link)

    def _connect(self, link: Link) -> None:
        if self._fleet.is_alive(link.id):
            self.perform(self.dispatcher.on_link_up(link, self._clock.now))

    # Messages of replicas

    def perform(self, commands: list[Command]) -> None:
        """Execute the dispatcher's commands."""
        for command in commands:
            if isinstance(command, Send):
                assert isinstance(command.call, Ask)
                self._fleet.accept(command.link, command.call)
            elif isinstance(command, Recall):
                self._fleet.recall(command.link, command.id)
            elif isinstance(command, Fail):
                self._figures.failed += 1

    def started(self, process: Process, asks: list[Ask]) -> None:
        """Record that a batch or an exchange starts to run."""
        now = self._clock.now
        self.dispatcher.on_started(process.id, [ask.id for ask in asks], now)
        self._figures.served(process.pool, now)
        for ask in asks:
            self._figures.waited(ask, now)

    def ended(self, process: Process, ask: Ask) -> None:
        """Handle an answer, or the end of a withdrawn call."""
        call, commands = self.dispatcher.on_ended(process.id, ask.id, self._clock.now)
        self.perform(commands)
        if self._reports.on_ended(process.pool):
            self.urgent[process.pool] = None
        if call is not None:
            self._figures.answered += ask.weight
            self._answered(ask)

    def goaway(self, process: Process) -> None:
        """Stop sending to a replica that drains; it finishes what it has accepted."""
        link = self.dispatcher.links.get(process.id)
        if link is not None:
            self.perform(self.dispatcher.on_goaway(link.id, link.last_id, self._clock.now))

    def resumed(self, process: Process) -> None:
        """Send to a server again whose drain was revoked."""
        link = self.dispatcher.links.get(process.id)
        if link is not None:
            link.closing = False
            self.perform(self.dispatcher.on_window(link.id, self._clock.now))

    def lost(self, process: Process) -> None:
        """Handle the end of a replica's link."""
        self._known.discard(process.id)
        if process.id in self.dispatcher.links:
            self.perform(self.dispatcher.on_link_lost(process.id, self._clock.now))
            self.urgent[process.pool] = None

    # Reports to the manager

    def tell_urgent(self) -> None:
        """Report the urgent pools: a call waits without a replica, a pool became idle meanwhile,
        or a link was lost."""
        loads = self._reports.partial(self.urgent)
        self.urgent = {}
        self._feed(DemandReported(Demand("w", next(self._seq), False, loads)))

    def _load(self, key: str) -> Load:
        return self.dispatcher.load(key, self._clock.now)

    def _is_cold(self, key: str) -> bool:
        pool = self.dispatcher.pools.get(key)
        return pool is None or not pool.is_connected

    def tell_all(self) -> bool:
        """Report all load; return whether there is any now or was in the last report."""
        was = self._last_full
        now = self._clock.now
        self._last_full = {key: self.dispatcher.load(key, now) for key in self.active}
        idle = [k for k, load in self._last_full.items() if not load.busy]
        for key in idle:
            del self.active[key], self._last_full[key]
        self._reports.full(self._last_full)
        called = self.dispatcher.take_called()
        self._feed(DemandReported(Demand("w", next(self._seq), True, self._last_full, called)))
        return bool(was or self._last_full or called)


class World:
    """One simulation. `run` plays it to the end; `figures` are its results."""

    figures: Figures

    def __init__(
        self,
        conditions: Conditions,
        functions: Iterable[Function],
        figures: Figures | None = None,
    ) -> None:
        self.conditions = conditions
        self.clock = Clock()
        self.figures = Figures() if figures is None else figures
        numbers = itertools.count(1)
        self.functions: dict[str, Function] = {one.key: one for one in functions}
        new_id, standbys = (lambda: f"r{next(numbers)}"), conditions.standbys
        self.machine = Machine(self.local_devices(), new_id, standbys)
        self.machine.cluster.ledger.set_host_memory(LOCAL_HOST, conditions.host_mib)
        self.fleet = self.open_fleet()
        self.callers = Callers(conditions, self.clock, self.fleet, self.feed, self.figures)
        self._waiting: list[events.Event] = []
        self._actions: dict[type, Callable[[Any], None]] = {
            commands.Launch: self.fleet.launch,
            commands.Assign: self.fleet.assign,
            commands.Bind: self.fleet.bind,
            commands.Drain: self._drain,
            commands.Quiesce: self._quiesce,
            commands.Resume: self.fleet.resume,
            commands.Park: self._park,
            commands.ProvePark: self.fleet.prove,
            commands.Unpark: self.fleet.unpark,
            commands.Verify: self.fleet.verify,
            commands.Terminate: self.fleet.terminate,
            commands.Release: self.fleet.release,
            commands.Publish: self._publish,
        }
        for function in self.functions.values():
            self.feed(events.PoolDefined(self.spec(function)))
        self.feed(events.ReplicasListed())
        for function in self.functions.values():
            self.callers.expect(function)

    def local_devices(self) -> list[Device]:
        """Return the devices of the local host."""
        return _devices(self.conditions)

    def open_fleet(self) -> Fleet:
        """Return the driver with its processes."""
        return Fleet(self.conditions, self.clock, self.functions, self.feed, self.figures)

    def spec(self, function: Function) -> PoolSpec:
        """Return the settings of a function's pool."""
        return function.spec(self.conditions)

    def run(self) -> Self:
        """Simulate the whole day."""
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
        """Return the next second in which a tick or a demand could change anything.

        Nothing is held, so every tick finds all pools unchanged until the next event, or until a
        pool changes by time alone.
        """
        cluster = self.machine.cluster
        if cluster.blocked or self.callers.active:
            return second
        quiet_s = min((cluster.pools[key].quiet_until_s for key in cluster.live), default=inf)
        to = max(second, ceil(min(self.clock.next_s(), quiet_s, self.conditions.horizon_s)) - 1)
        if to - second > 1:
            # The manager forgets a gateway after 3 s of silence: its report precedes the tick.
            self.figures.ticks_skipped += to - second
            return to
        return second

    def _until(self, when_s: float) -> None:
        while self.clock.next_s() <= when_s:
            self.clock.step()
            self._settle()
        self.clock.now = when_s

    def _settle(self) -> None:
        """Send the gateway's urgent reports once all actions of this moment are done."""
        while self.callers.urgent:
            self.callers.tell_urgent()

    def feed(self, event: events.Event) -> None:
        """Handle one event with its commands; events that these cause are handled afterwards."""
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
        """Return the machine's commands for an event."""
        return self.machine.handle(event, self.clock.now)

    def _drain(self, command: commands.Drain) -> None:
        replica = self.machine.replica(command.id)
        why = replica.why if replica else ""
        self.figures.evictions += why.startswith("evicted")
        self.figures.swaps += why.startswith("gives way")
        self.figures.idle_stops += why.startswith("idle")
        self.fleet.drain(command)

    def _quiesce(self, command: commands.Quiesce) -> None:
        self.figures.swaps += 1
        self.fleet.quiesce(command)

    def _park(self, command: commands.Park) -> None:
        self.figures.swaps += command.if_idle_s is None
        self.fleet.park(command)

    def _publish(self, command: commands.Publish) -> None:
        for key in sorted(command.keys):
            self.callers.look(key, self.machine.endpoints(key, self.clock.now))


def _devices(conditions: Conditions) -> list[Device]:
    kind, size = conditions.device_kind, conditions.device_mib
    bank = "host" if kind == "cpu" else ""
    total = size * conditions.devices if bank else size
    return [Device(f"{kind}:{n}", kind, total, bank) for n in range(conditions.devices)]
