"""What gateways report, and where it goes: load, cold starts, arrivals, usage and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from admin.events.snapshot import GatewayState
from admin.workers.messages import Activity
from gateway.dispatch.pool import UNKNOWN
from gateway.observing.errors import RecentFailures
from gateway.ports import CallHistory, Pools
from pool_manager.subscribers import Subscribers
from registry.exchange import Load, decode_demand, decode_endpoints


class Demands(Pools, Protocol):
    """The pool manager's knowledge of demand."""

    def loads(self) -> dict[str, Load]:
        """Return queued and in-flight requests of every pool that has any."""


class Reports(GatewayState):
    """Load of all gateways, states of pools, and recent errors. A gateway can report for itself
    only.

    Counts are as old as a gateway's last message: at most 1 s, less while requests wait at a pool
    without a replica, or after `refresh`.
    """

    def __init__(
        self, manager: Demands, history: CallHistory, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        """`refresh` returns when the demand of every gateway has been reported anew."""
        self._manager = manager
        self._history = history
        self._refresh = refresh
        self._states: dict[str, str] = {}
        self._last: dict[str, Activity] = {}
        self._receivers = Subscribers[[Activity]]()
        self.failures = RecentFailures()

    def subscribe(self, receiver: Callable[[Activity], None]) -> Callable[[], None]:
        """Call `receiver` with each gateway's activity of about a second, until the returned
        function is called."""
        return self._receivers.subscribe(receiver)

    def on_demand(self, gateway: str, data: bytes) -> None:
        """Pass on a gateway's Demand. Raises ValueError or msgspec.DecodeError for one that is not
        its own: it would never be removed."""
        worker = decode_demand(data).worker
        if worker != gateway:
            raise ValueError(f"expected the demand of {gateway}, got that of {worker[:80]}")
        self._manager.receive_demand(data)

    def on_activity(self, gateway: str, activity: Activity) -> None:
        """Count what a gateway reports; call it once for each."""
        self._last[gateway] = activity
        for one in activity.arrived:
            self._history.arrived(one.namespace, one.name, one.count)
        for row in activity.used:
            self._history.used(row)
        self.failures.add(activity.failures)
        self._receivers.notify(activity)

    def on_gone(self, gateway: str) -> None:
        """End the demand of a gateway that is gone or apart; forget its tasks and reasons."""
        self._last.pop(gateway, None)
        self._manager.worker_lost(gateway)

    @property
    def tasks(self) -> int:
        """Number of background tasks of all gateways in processes of their own."""
        return sum(one.tasks for one in self._last.values())

    def reasons(self) -> list[str]:
        """Return the gateways' reasons for `/readyz`."""
        return [reason for one in self._last.values() for reason in one.reasons]

    def on_endpoints(self, endpoints: bytes) -> None:
        """Apply the manager's Endpoints."""
        message = decode_endpoints(endpoints)
        if message.full:
            self._states.clear()
        for key, shown in message.pools.items():
            if shown == UNKNOWN or shown.state == "gone":
                self._states.pop(key, None)
            else:
                self._states[key] = shown.state

    async def refresh(self) -> None:
        """Implement `GatewayState.refresh`."""
        await self._refresh()

    def loads(self) -> dict[str, Load]:
        """Implement `GatewayState.loads`."""
        return self._manager.loads()

    def states(self) -> dict[str, str]:
        """Implement `GatewayState.states`."""
        return dict(self._states)
