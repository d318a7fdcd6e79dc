"""Joins gateway processes to what they serve: manager, history, metrics."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from admin.past import Past
from admin.workers.messages import Beat, Reckoned, Woken
from admin.workers.supervisor.hub import Hub
from admin.workers.supervisor.overview import Overview
from admin.workers.supervisor.page import Gathered
from admin.workers.supervisor.process import WorkerProcess
from gateway.metrics.families import Metrics
from gateway.metrics.pulse import Answered
from pool_manager.manager import Manager
from registry.exchange import decode_demand


class Links:
    """What a worker says goes to whom it concerns. It is believed what it says of itself only."""

    def __init__(
        self,
        hub: Hub,
        overview: Overview,
        page: Gathered,
        own: Metrics,
        manager: Manager,
        past: Past,
    ) -> None:
        """`own` counts what is counted once for all workers."""
        self._hub = hub
        self._overview = overview
        self._page = page
        self._own = own
        self._manager = manager
        self._past = past
        self.on_answered: Callable[[list[Answered]], None] = lambda _answered: None
        """Told of what a worker answered in about a second."""

    def join(self, process: WorkerProcess) -> None:
        """A worker has started."""
        self._page.join(process.name, process.table, process.channel.send)
        self._hub.join(process.name, process.channel.send)

    def leave(self, process: WorkerProcess) -> None:
        """A worker has ended: it holds nothing any more, what it counted stays."""
        self._page.leave(process.name)
        self._overview.forget(process.name)
        self._manager.worker_lost(process.name)
        self._hub.leave(process.name)

    def wants(self, worker: str, data: bytes) -> None:
        """A worker's Demand. Raises ValueError where it speaks for another."""
        demand = decode_demand(data)
        if demand.worker != worker:
            raise ValueError(f"expected the demand of {worker}, got that of {demand.worker[:80]}")
        self._overview.hear(demand, monotonic())
        self._manager.receive_demand(data)

    def reached(self, worker: str, number: int) -> None:
        """A worker has in force what was sent before."""
        self._hub.reached(worker, number)

    def reckoned(self, worker: str, message: Reckoned) -> None:
        """A worker has said where its requests are."""
        self._page.reckoned(worker, message)

    def woken(self, message: Woken) -> None:
        """Requests waited for a cold start: counted once, however many workers say so."""
        self._own.cold_start(
            message.namespace,
            message.function,
            message.replica,
            message.phases,
            message.request,
        )

    def beat(self, worker: str, beat: Beat) -> None:
        """A worker lives, and requests came there."""
        self._overview.beat(worker, beat.tasks)
        self._overview.failed(beat.failures)
        for one in beat.arrived:
            self._past.arrivals(one.namespace, one.name, one.count)
        self.on_answered(beat.answered)
