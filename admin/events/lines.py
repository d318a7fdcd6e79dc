"""Functions as they are now, as lists and events show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from admin.events.rates import Rates
from admin.past import Past
from admin.views import Live, function_json
from gateway.dispatch.pool import UNKNOWN
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.exchange import NOTHING, Load


class Held(Protocol):
    """What the gateway has to do, in all its processes, and how pools look to it."""

    def loads(self) -> dict[str, Load]:
        """What is held and in flight, for every pool with any."""

    def states(self) -> dict[str, str]:
        """The state of every pool that is not at rest."""


class Lines:
    """`clock` gives the seconds of `rates`, `wall` Unix seconds."""

    def __init__(
        self,
        manager: Manager,
        held: Held,
        past: Past,
        rates: Rates,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.manager = manager
        self.held = held
        self._past = past
        self.rates = rates
        self.clock = clock
        self.wall = wall

    def line(self, deployed: Deployed, loads: Mapping[str, Load]) -> dict[str, Any]:
        """One function; `loads` as `held.loads` gave them."""
        key = deployed.revision.key
        pool = self.manager.pool(key) or (UNKNOWN, 0, 0.0)
        shown, _, since_s = pool
        ready_in_ms = self._past.ready_in_ms(
            key, shown.state, since_s, by_standby=self.manager.wakes_by_standby(key)
        )
        outlook = self.manager.outlook(key)
        sleeps_at_s = None
        if outlook.sleeps_in_s is not None:
            sleeps_at_s = round(self.wall() + outlook.sleeps_in_s, 1)
        function = deployed.function
        pace = self.rates.pace((function.namespace, function.name), self.clock())
        live = Live(
            pool,
            loads.get(key, NOTHING),
            self._past.expected(key),
            ready_in_ms,
            pace,
            outlook,
            sleeps_at_s,
        )
        return function_json(deployed, live)
