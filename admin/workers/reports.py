"""What gateways report, and where it goes: load, cold starts, arrivals, usage and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from admin.events.snapshot import GatewayState
from admin.history import ServerHistory
from admin.workers.messages import Beat, Wants, Woken
from gateway.dispatch.pool import UNKNOWN
from gateway.metrics.requests import Metrics
from gateway.metrics.samples import RateSample
from gateway.observing.errors import RecentFailures
from gateway.ports import Pools
from pool_manager.subscribers import Subscribers
from registry.exchange import Load, decode_demand, decode_endpoints


class Loads(Protocol):
    """The pool manager's knowledge of demand."""

    def loads(self) -> dict[str, Load]:
        """Return queued and in-flight requests of every pool that has any."""


class ClusterState(GatewayState):
    """Load of all gateways, states of pools, and recent errors.

    Counts are as old as a gateway's last message: at most 1 s, less while requests wait at a pool
    without a replica, or after `refresh`.
    """

    def __init__(self, manager: Loads, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` returns when the demand of every gateway has been reported anew."""
        self._manager = manager
        self._refresh = refresh
        self._states: dict[str, str] = {}
        self._beats: dict[str, Beat] = {}
        self.failures = RecentFailures()

    def on_beat(self, gateway: str, beat: Beat) -> None:
        """Record a gateway's tasks and reasons, and its errors since the last beat."""
        self._beats[gateway] = beat
        self.failures.add(beat.failures)

    def remove(self, gateway: str) -> None:
        """Forget the tasks and reasons of a gateway that is gone or apart."""
        self._beats.pop(gateway, None)

    @property
    def tasks(self) -> int:
        """Number of background tasks of all gateways in processes of their own."""
        return sum(one.tasks for one in self._beats.values())

    def reasons(self) -> list[str]:
        """Return the gateways' reasons for `/readyz`."""
        return [reason for one in self._beats.values() for reason in one.reasons]

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


class Reports:
    """Receiver of the gateways' reports. A gateway can report for itself only."""

    def __init__(
        self, cluster: ClusterState, own: Metrics, pools: Pools, history: ServerHistory
    ) -> None:
        """`own` has the metrics that are counted once for all gateways."""
        self._cluster = cluster
        self._own = own
        self._pools = pools
        self._history = history
        self._receivers = Subscribers[[list[RateSample]]]()

    def subscribe(self, receiver: Callable[[list[RateSample]], None]) -> Callable[[], None]:
        """Call `receiver` with a gateway's responses of about a second, until the returned function
        is called."""
        return self._receivers.subscribe(receiver)

    def on_message(self, gateway: str, message: Wants | Woken | Beat) -> None:
        """Apply a report. Raises ValueError or msgspec.DecodeError for a Demand that is not this
        gateway's."""
        if isinstance(message, Wants):
            self._on_demand(gateway, message.demand)
        elif isinstance(message, Woken):
            said = (message.namespace, message.function, message.replica, message.phases)
            self._own.count_cold_start(*said, message.request)
        else:
            self._on_beat(gateway, message)

    def on_gone(self, gateway: str) -> None:
        """End the demand of a gateway that is gone or apart."""
        self._cluster.remove(gateway)
        self._pools.worker_lost(gateway)

    def _on_demand(self, gateway: str, data: bytes) -> None:
        worker = decode_demand(data).worker
        if worker != gateway:
            raise ValueError(f"expected the demand of {gateway}, got that of {worker[:80]}")
        self._pools.receive_demand(data)

    def _on_beat(self, gateway: str, beat: Beat) -> None:
        self._cluster.on_beat(gateway, beat)
        for one in beat.arrived:
            self._history.arrived(one.namespace, one.name, one.count)
        for row in beat.used:
            self._history.used(row)
        self._receivers.notify(beat.answered)
