"""The gateway's side: the real Dispatcher, the calls it holds, and what it says of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from admin.replay.clock import Clock
from admin.replay.conditions import Conditions
from admin.replay.figures import Figures
from admin.replay.fleet import Fleet
from admin.replay.function import Function
from admin.replay.replica import Ask, Process
from gateway.dispatch.call import Command, Fail, Link, Recall, Send, Stage
from gateway.dispatch.demand import DemandReports
from gateway.dispatch.dispatcher import Dispatcher, Limits
from pool_manager.core.events import DemandCame
from registry.errors import FnError
from registry.exchange import Demand, Load, PoolEndpoints
from runtime_image.link.meta import RequestMeta

CONNECT_S = 0.001
META = RequestMeta("application/json", "", -1, "")


class Callers:
    """Calls in, demand out: as the gateway's delivery does it, without sockets.

    `urgent` are the pools whose load the manager is to hear of at once. Only pools that hold
    something are looked at, where the dispatcher would walk all it has ever heard of.
    """

    def __init__(
        self,
        conditions: Conditions,
        clock: Clock,
        fleet: Fleet,
        feed: Callable[[DemandCame], None],
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
        """From now on the function is called."""
        self.functions[function.key] = function
        for _ in range(self._conditions.closed):
            self._clock.at(0.0, self._ask, function)
        if not self._conditions.closed:
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
        """A caller who was answered and paused asks again, while the day lasts."""
        if self._clock.now <= self._conditions.horizon_s:
            self._submit(function, function.service_s)

    def _submit(self, function: Function, took_s: float, weight: int = 1) -> None:
        now = self._clock.now
        wait_until_s = now + self._conditions.wait_s
        ask = Ask(function.key, META, b"", now, wait_until_s, 60.0)
        ask.service_s, ask.weight = took_s, weight
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
        """Its wait budget is over: what the dispatcher's sweep does, at the exact time."""
        if ask.stage in (Stage.QUEUED, Stage.SENT):
            self._figures.expired += ask.weight
            self._figures.waited(ask, self._clock.now)
            self.perform(self.dispatcher.cancel(ask, self._clock.now))
            self._answered(ask)

    def _answered(self, ask: Ask) -> None:
        if self._conditions.closed:
            function = self.functions[ask.pool]
            self._clock.after(function.draw_pause_s(self._conditions.think_s), self._ask, function)

    # What the manager says

    def look(self, key: str, shown: PoolEndpoints) -> None:
        """Connect to what is new."""
        self.perform(self.dispatcher.on_endpoints(key, shown, self._clock.now))
        for endpoint in shown.replicas:
            if endpoint.id not in self._known:
                self._known.add(endpoint.id)
                link = Link(endpoint.id, key, endpoint.limit, endpoint.marks_started)
                self._clock.after(CONNECT_S, self._connect, link)

    def _connect(self, link: Link) -> None:
        if self._fleet.is_alive(link.id):
            self.perform(self.dispatcher.on_link_up(link, self._clock.now))

    # What replicas say

    def perform(self, commands: list[Command]) -> None:
        """Do what the dispatcher asks."""
        for command in commands:
            if isinstance(command, Send):
                assert isinstance(command.call, Ask)
                self._fleet.accept(command.link, command.call)
            elif isinstance(command, Recall):
                self._fleet.recall(command.link, command.id)
            elif isinstance(command, Fail):
                self._figures.failed += 1

    def started(self, process: Process) -> None:
        """A batch begins to run."""
        now = self._clock.now
        self.dispatcher.on_started(process.id, [ask.id for ask in process.running], now)
        self._figures.served(process.pool, now)
        for ask in process.running:
            self._figures.waited(ask, now)

    def ended(self, process: Process, ask: Ask) -> None:
        """An answer, or the end of a call that was not wanted any more."""
        call, commands = self.dispatcher.on_ended(process.id, ask.id, self._clock.now)
        self.perform(commands)
        if self._reports.on_ended(process.pool):
            self.urgent[process.pool] = None
        if call is not None:
            self._figures.answered += ask.weight
            self._answered(ask)

    def goaway(self, process: Process) -> None:
        """A replica takes nothing new; what it has accepted it finishes."""
        link = self.dispatcher.links.get(process.id)
        if link is not None:
            self.perform(self.dispatcher.on_goaway(link.id, link.last_id, self._clock.now))

    def lost(self, process: Process) -> None:
        """A replica's link ended."""
        self._known.discard(process.id)
        if process.id in self.dispatcher.links:
            self.perform(self.dispatcher.on_link_lost(process.id, self._clock.now))
            self.urgent[process.pool] = None

    # What the manager is told

    def tell_urgent(self) -> None:
        """Somebody waits without a replica, or somebody else has fallen idle meanwhile, or a link
        is lost."""
        loads = self._reports.partial(self.urgent)
        self.urgent = {}
        self._feed(DemandCame(Demand("w", next(self._seq), False, loads)))

    def _load(self, key: str) -> Load:
        return self.dispatcher.load(key, self._clock.now)

    def _is_cold(self, key: str) -> bool:
        pool = self.dispatcher.pools.get(key)
        return pool is None or all(link.closing for link in pool.links.values())

    def tell_all(self) -> bool:
        """Everything that is held; whether there is anything now or was the last time."""
        was = self._last_full
        now = self._clock.now
        self._last_full = {key: self.dispatcher.load(key, now) for key in self.active}
        idle = [k for k, load in self._last_full.items() if not load.busy]
        for key in idle:
            del self.active[key], self._last_full[key]
        self._reports.full(self._last_full)
        called = self.dispatcher.take_called()
        self._feed(DemandCame(Demand("w", next(self._seq), True, self._last_full, called)))
        return bool(was or self._last_full or called)
