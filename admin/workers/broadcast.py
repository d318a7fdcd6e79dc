"""Supervisor side of the messages: broadcasts to all workers, and dispatch of their messages.

`Broadcaster` sends functions, keys, estimates and endpoints. `ClusterState` aggregates the workers'
reports. `WorkerMessages` dispatches each message of a worker to its consumer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Final

import structlog

from admin.history import ServerHistory
from admin.workers.connections import ConnectionPoll
from admin.workers.messages import (
    AskLoad,
    AskStatistics,
    AskUnload,
    Beat,
    Began,
    Estimates,
    FunctionNow,
    Functions,
    KeyNow,
    LeaveLoad,
    OpennessNow,
    Pools,
    Reach,
    Reckoned,
    TellConnected,
    UpstreamKeyNow,
    Woken,
    encode,
)
from admin.workers.metrics import MergedMetrics
from admin.workers.model_control import ModelRequests
from admin.workers.process import WorkerProcess
from admin.workers.statistics import StatisticsAnswers
from gateway.dispatch.pool import UNKNOWN
from gateway.metrics.requests import Metrics
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure, RecentFailures
from pool_manager.core.demand import DemandTable
from pool_manager.manager import Manager
from pool_manager.subscribers import Subscribers
from registry.catalog import Catalog, Change, Deployed
from registry.exchange import Demand, Expected, Load, decode_demand, decode_endpoints
from registry.model.history import ColdStart
from registry.model.keys import Key
from registry.model.revisions import pool_key
from registry.openness import Openness
from registry.store.keys import KeyRing
from registry.upstream_keys import UpstreamKey, UpstreamKeys

log = structlog.get_logger()

TOGETHER: Final = 200
"""Max functions in one message when a worker starts."""
SCHEMAS_MAX: Final = 8 * 2**20
"""Max characters of schemas of Python functions in such a message of more than one function."""
SETTLED_S: Final = 2.0
"""Max seconds that a change waits until all gateway processes have applied it. A process that takes
longer is busy starting, or about to be killed."""


def pieces(
    functions: Iterable[FunctionNow], together: int = TOGETHER, schemas_max: int = SCHEMAS_MAX
) -> Iterator[list[FunctionNow]]:
    """Yield functions in lists of at most `together`, with at most `schemas_max` characters of
    schemas unless there is only one function."""
    piece: list[FunctionNow] = []
    length = 0
    for function in functions:
        said = (one.revision.interface for one in function.revisions)
        more = sum(len(one.schema) for one in said if one is not None)
        if piece and (len(piece) == together or length + more > schemas_max):
            yield piece
            piece, length = [], 0
        piece.append(function)
        length += more
    if piece:
        yield piece


class Broadcaster:
    """Sends functions, keys, openness, estimates and endpoints to all workers, in the same order to
    each: a change precedes everything that depends on it.

    A new worker receives the full state, then each change. `expected` returns a pool's estimate.
    """

    def __init__(
        self,
        catalog: Catalog,
        ring: KeyRing,
        upstream_keys: UpstreamKeys,
        expected: Callable[[str], Expected],
    ) -> None:
        self._catalog = catalog
        self._ring = ring
        self._upstream_keys = upstream_keys
        self._expected = expected
        self._sends: dict[str, Callable[[bytes], None]] = {}
        self._reached: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    def open(self) -> Callable[[], None]:
        """Send changes from now on, until the returned function is called. Call it before others
        subscribe to the catalog: workers must know a revision before its pool."""
        stack = ExitStack()
        stack.callback(self._catalog.subscribe(self._on_change))
        stack.callback(self._ring.subscribe(self._on_key))
        stack.callback(self._ring.on_decision(self._on_decision))
        stack.callback(self._upstream_keys.subscribe(self._on_upstream_key))
        return stack.close

    def add_worker(self, worker: str, send: Callable[[bytes], None]) -> None:
        """Send a new worker the full state, and then each change."""
        self._sends[worker] = send
        self._reached[worker] = 0
        for key in self._ring.all():
            send(encode(KeyNow(key, True)))
        send(encode(OpennessNow(self._ring.openness)))
        for one in self._upstream_keys.all():
            send(encode(UpstreamKeyNow(one, True)))
        for now in pieces(self._message_of(one) for one in self._catalog.all()):
            send(encode(Functions(now)))
            self._send_estimates([send], (one for each in now for one in each.revisions))
        send(encode(Began()))

    def remove_worker(self, worker: str) -> None:
        """Stop waiting for a worker that has ended."""
        self._sends.pop(worker, None)
        self._reached.pop(worker, None)
        self._changed.set()

    def on_reached(self, worker: str, number: int) -> None:
        """Record that a worker has applied everything that was sent before `number`."""
        if worker in self._reached:
            self._reached[worker] = number
        self._changed.set()

    def send_endpoints(self, endpoints: bytes) -> None:
        """Send the manager's Endpoints to all workers."""
        self._send_all(encode(Pools(endpoints)))

    def on_cold_start(self, record: ColdStart) -> None:
        """Send the new estimate of a pool after a measured cold start."""
        pool = pool_key(record.namespace, record.name, record.number)
        self._send_all(encode(Estimates({pool: self._expected(pool)})))

    async def settled(self) -> None:
        """Return when every worker has applied every earlier change, or after SETTLED_S."""
        number = next(self._numbers)
        workers = list(self._sends)
        self._send_all(encode(Reach(number)))
        try:
            async with asyncio.timeout(SETTLED_S):
                while self._behind(workers, number):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("workers are behind", workers=self._behind(workers, number))

    def _behind(self, workers: list[str], number: int) -> list[str]:
        return [one for one in workers if self._reached.get(one, number) < number]

    def _on_change(self, change: Change) -> None:
        revisions = self._catalog.revisions(change.name, change.namespace)
        now = FunctionNow(change.namespace, change.name, list(revisions))
        self._send_all(encode(Functions([now])))
        self._send_estimates(list(self._sends.values()), revisions)

    def _on_key(self, key: Key, is_let_in: bool) -> None:
        self._send_all(encode(KeyNow(key, is_let_in)))

    def _on_decision(self, openness: Openness) -> None:
        self._send_all(encode(OpennessNow(openness)))

    def _on_upstream_key(self, key: UpstreamKey, is_kept: bool) -> None:
        self._send_all(encode(UpstreamKeyNow(key, is_kept)))

    def _message_of(self, deployed: Deployed) -> FunctionNow:
        namespace, name = deployed.function.namespace, deployed.function.name
        return FunctionNow(namespace, name, list(self._catalog.revisions(name, namespace)))

    def _send_estimates(
        self, sends: list[Callable[[bytes], None]], revisions: Iterable[Deployed]
    ) -> None:
        keys = [one.revision.key for one in revisions]
        if keys and sends:
            message = encode(Estimates({key: self._expected(key) for key in keys}))
            for send in sends:
                send(message)

    def _send_all(self, message: bytes) -> None:
        for send in list(self._sends.values()):
            send(message)


class ClusterState:
    """Load of all workers, states of pools, and recent errors, from the messages that pass through
    the supervisor. `now` is in monotonic seconds.

    Counts are as old as a worker's last message: at most 1 s, less while requests wait at a pool
    without a replica.
    """

    def __init__(self) -> None:
        self._demand = DemandTable()
        self._states: dict[str, str] = {}
        self._tasks: dict[str, int] = {}
        self.failures = RecentFailures()

    def on_demand(self, demand: Demand, now: float) -> None:
        """Apply a worker's Demand."""
        self._demand.update(demand, now)

    def on_beat(self, worker: str, tasks: int, failures: list[Failure]) -> None:
        """Record a worker's number of background tasks, and its errors since the last beat."""
        self._tasks[worker] = tasks
        self.failures.add(failures)

    def remove_worker(self, worker: str) -> None:
        """Remove the load of a worker that has ended."""
        self._demand.remove(worker)
        self._tasks.pop(worker, None)

    @property
    def tasks(self) -> int:
        """Number of background tasks of all workers."""
        return sum(self._tasks.values())

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

    def loads(self) -> dict[str, Load]:
        """Return queued and in-flight requests of every pool that has any."""
        return {key: self._demand.load(key) for key in self._demand.active()}

    def states(self) -> dict[str, str]:
        """Return the state of every pool that is not at rest."""
        return dict(self._states)


class WorkerMessages:
    """Dispatcher of the workers' messages. A worker can report for itself only."""

    def __init__(  # noqa: PLR0913 - the receivers of the messages
        self,
        broadcaster: Broadcaster,
        cluster: ClusterState,
        page: MergedMetrics,
        own: Metrics,
        manager: Manager,
        history: ServerHistory,
        connections: ConnectionPoll,
        statistics: StatisticsAnswers,
        model_requests: ModelRequests,
    ) -> None:
        """`own` has the metrics that are counted once for all workers."""
        self._broadcaster = broadcaster
        self._cluster = cluster
        self._page = page
        self._own = own
        self._manager = manager
        self._history = history
        self._connections = connections
        self._statistics = statistics
        self._model_requests = model_requests
        self._receivers = Subscribers[[list[RateSample]]]()

    def subscribe(self, receiver: Callable[[list[RateSample]], None]) -> Callable[[], None]:
        """Call `receiver` with a worker's responses of about a second, until the returned function
        is called."""
        return self._receivers.subscribe(receiver)

    def on_started(self, process: WorkerProcess) -> None:
        """Connect a started worker to broadcasts and metrics."""
        self._page.add_worker(process.name, process.counters, process.channel.send)
        self._broadcaster.add_worker(process.name, process.channel.send)
        self._connections.add_worker(process.name, process.channel.send)
        self._statistics.add_worker(process.name, process.revisions, process.channel.send)
        self._model_requests.add_worker(process.name, process.channel.send)

    def on_ended(self, process: WorkerProcess) -> None:
        """Remove the load of a worker that has ended; its counts stay."""
        self._page.remove_worker(process.name)
        self._cluster.remove_worker(process.name)
        self._manager.worker_lost(process.name)
        self._broadcaster.remove_worker(process.name)
        self._connections.remove_worker(process.name)
        self._statistics.remove_worker(process.name)
        self._model_requests.remove_worker(process.name)

    def on_demand(self, worker: str, data: bytes) -> None:
        """Forward a worker's Demand. Raises ValueError if it names another worker."""
        demand = decode_demand(data)
        if demand.worker != worker:
            raise ValueError(f"expected the demand of {worker}, got that of {demand.worker[:80]}")
        self._cluster.on_demand(demand, monotonic())
        self._manager.receive_demand(data)

    def on_reached(self, worker: str, number: int) -> None:
        """Record how many broadcasts a worker has applied."""
        self._broadcaster.on_reached(worker, number)

    def on_connected(self, worker: str, message: TellConnected) -> None:
        """Forward a worker's list of open exchanges."""
        self._connections.on_told(worker, message)

    def on_statistics(self, worker: str, message: AskStatistics) -> None:
        """Forward a worker's question for statistics."""
        self._statistics.on_asked(worker, message)

    def on_model_request(self, worker: str, message: AskLoad | LeaveLoad | AskUnload) -> None:
        """Forward a worker's request to load or unload a model."""
        self._model_requests.on_request(worker, message)

    def on_reckoned(self, worker: str, message: Reckoned) -> None:
        """Forward a worker's answer to a poll of its ledger."""
        self._page.on_reckoned(worker, message)

    def on_cold_start(self, message: Woken) -> None:
        """Count a cold start that requests waited for, once for all workers."""
        self._own.count_cold_start(
            message.namespace,
            message.function,
            message.replica,
            message.phases,
            message.request,
        )

    def on_beat(self, worker: str, beat: Beat) -> None:
        """Apply a worker's counts since its last beat, about a second ago."""
        self._cluster.on_beat(worker, beat.tasks, beat.failures)
        for one in beat.arrived:
            self._history.arrived(one.namespace, one.name, one.count)
        for row in beat.used:
            self._history.used(row)
        self._receivers.notify(beat.answered)
