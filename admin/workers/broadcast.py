"""Tells every gateway process what is deployed, which keys there are and how pools are.

Joins gateway processes to what they serve: manager, history, metrics.

What all gateway processes together hold, and how pools look to them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from time import monotonic
from typing import Final

import structlog

from admin.history import ServerHistory
from admin.workers.messages import (
    Beat,
    Began,
    Estimates,
    FunctionNow,
    Functions,
    KeyNow,
    Pools,
    Reach,
    Reckoned,
    Woken,
    encode,
)
from admin.workers.metrics import MergedMetrics
from admin.workers.process import WorkerProcess
from gateway.dispatch.pool import UNKNOWN
from gateway.metrics.requests import Metrics, RateSample
from gateway.observing.errors import Failure, RecentFailures
from pool_manager.core.demand import DemandBook
from pool_manager.manager import Manager
from pool_manager.subscribers import Subscribers
from registry.catalog import Catalog, Change, Deployed
from registry.exchange import Demand, Expected, Load, decode_demand, decode_endpoints
from registry.model import ColdStart, Key, pool_key
from registry.store.keys import KeyRing

log = structlog.get_logger()

TOGETHER: Final = 200
"""Functions in one message of a start."""
SETTLED_S: Final = 2.0
"""How long a change waits until all gateway processes have it. One that takes longer is busy
starting, or about to be given up."""


class Broadcaster:
    """One order for all: what changed is sent when it changes, before whatever depends on it.

    Each worker is told everything when it joins, then every change. `expected` gives a pool's
    estimate.
    """

    def __init__(
        self, catalog: Catalog, ring: KeyRing, expected: Callable[[str], Expected]
    ) -> None:
        self._catalog = catalog
        self._ring = ring
        self._expected = expected
        self._sends: dict[str, Callable[[bytes], None]] = {}
        self._reached: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()

    def open(self) -> Callable[[], None]:
        """Hear of changes from now on, until the returned function is called. To be opened before
        whatever else hears of the catalog: workers are to know a revision before its pool."""
        stack = ExitStack()
        stack.callback(self._catalog.subscribe(self._changed))
        stack.callback(self._ring.subscribe(self._key))
        return stack.close

    def join(self, worker: str, send: Callable[[bytes], None]) -> None:
        """Tell a new worker everything there is, and then what changes."""
        self._sends[worker] = send
        self._reached[worker] = 0
        for key in self._ring.all():
            send(encode(KeyNow(key, True)))
        functions = self._catalog.all()
        for first in range(0, len(functions), TOGETHER):
            now = [self._now(one) for one in functions[first : first + TOGETHER]]
            send(encode(Functions(now)))
            self._send_estimates([send], (one for each in now for one in each.revisions))
        send(encode(Began()))

    def leave(self, worker: str) -> None:
        """A worker is gone: nobody waits for it any more."""
        self._sends.pop(worker, None)
        self._reached.pop(worker, None)
        self._news.set()

    def reached(self, worker: str, number: int) -> None:
        """A worker has in force whatever was sent before that number."""
        if worker in self._reached:
            self._reached[worker] = number
        self._news.set()

    def pools(self, endpoints: bytes) -> None:
        """The manager's Endpoints, for all."""
        self._tell(encode(Pools(endpoints)))

    def on_cold_start(self, record: ColdStart) -> None:
        """A pool's cold start was measured again: send its new estimate."""
        pool = pool_key(record.namespace, record.name, record.number)
        self._tell(encode(Estimates({pool: self._expected(pool)})))

    async def settled(self) -> None:
        """Return when every worker has in force whatever was changed before; at most 2 s later."""
        number = next(self._numbers)
        workers = list(self._sends)
        self._tell(encode(Reach(number)))
        try:
            async with asyncio.timeout(SETTLED_S):
                while self._behind(workers, number):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("workers are behind", workers=self._behind(workers, number))

    def _behind(self, workers: list[str], number: int) -> list[str]:
        return [one for one in workers if self._reached.get(one, number) < number]

    def _changed(self, change: Change) -> None:
        revisions = self._catalog.revisions(change.name, change.namespace)
        now = FunctionNow(change.namespace, change.name, list(revisions))
        self._tell(encode(Functions([now])))
        self._send_estimates(list(self._sends.values()), revisions)

    def _key(self, key: Key, is_let_in: bool) -> None:
        self._tell(encode(KeyNow(key, is_let_in)))

    def _now(self, deployed: Deployed) -> FunctionNow:
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

    def _tell(self, message: bytes) -> None:
        for send in list(self._sends.values()):
            send(message)


class ClusterState:
    """Heard from the two messages that pass through the supervisor. `now` is monotonic seconds.

    Counts are as old as a worker's last word: a second at most, less where somebody waits at a
    pool without a replica.
    """

    def __init__(self) -> None:
        self._demand = DemandBook()
        self._states: dict[str, str] = {}
        self._tasks: dict[str, int] = {}
        self.failures = RecentFailures()

    def hear(self, demand: Demand, now: float) -> None:
        """A worker said what it holds."""
        self._demand.hear(demand, now)

    def beat(self, worker: str, tasks: int) -> None:
        """A worker said how much goes on in its background."""
        self._tasks[worker] = tasks

    def failed(self, failures: list[Failure]) -> None:
        """A worker said what went wrong."""
        self.failures.add(failures)

    def forget(self, worker: str) -> None:
        """A worker is gone."""
        self._demand.forget(worker)
        self._tasks.pop(worker, None)

    @property
    def tasks(self) -> int:
        """What goes on in the background of all workers."""
        return sum(self._tasks.values())

    def on_endpoints(self, endpoints: bytes) -> None:
        """The manager said how pools are."""
        message = decode_endpoints(endpoints)
        if message.full:
            self._states.clear()
        for key, shown in message.pools.items():
            if shown == UNKNOWN or shown.state == "gone":
                self._states.pop(key, None)
            else:
                self._states[key] = shown.state

    def loads(self) -> dict[str, Load]:
        """What is held and in flight, for every pool with any."""
        return {key: self._demand.load(key) for key in self._demand.active()}

    def states(self) -> dict[str, str]:
        """The state of every pool that is not at rest."""
        return dict(self._states)


class WorkerMessages:
    """What a worker says goes to whom it concerns. It is believed what it says of itself only."""

    def __init__(
        self,
        broadcaster: Broadcaster,
        cluster: ClusterState,
        page: MergedMetrics,
        own: Metrics,
        manager: Manager,
        history: ServerHistory,
    ) -> None:
        """`own` counts what is counted once for all workers."""
        self._broadcaster = broadcaster
        self._cluster = cluster
        self._page = page
        self._own = own
        self._manager = manager
        self._history = history
        self._receivers = Subscribers[[list[RateSample]]]()

    def subscribe(self, receiver: Callable[[list[RateSample]], None]) -> Callable[[], None]:
        """Call `receiver` with what a worker answered in about a second, until the returned
        function is called."""
        return self._receivers.subscribe(receiver)

    def join(self, process: WorkerProcess) -> None:
        """A worker has started."""
        self._page.join(process.name, process.counters, process.channel.send)
        self._broadcaster.join(process.name, process.channel.send)

    def leave(self, process: WorkerProcess) -> None:
        """A worker has ended: it holds nothing any more, what it counted stays."""
        self._page.leave(process.name)
        self._cluster.forget(process.name)
        self._manager.worker_lost(process.name)
        self._broadcaster.leave(process.name)

    def wants(self, worker: str, data: bytes) -> None:
        """A worker's Demand. Raises ValueError where it speaks for another."""
        demand = decode_demand(data)
        if demand.worker != worker:
            raise ValueError(f"expected the demand of {worker}, got that of {demand.worker[:80]}")
        self._cluster.hear(demand, monotonic())
        self._manager.receive_demand(data)

    def reached(self, worker: str, number: int) -> None:
        """A worker has in force what was sent before."""
        self._broadcaster.reached(worker, number)

    def reckoned(self, worker: str, message: Reckoned) -> None:
        """A worker has said where its requests are."""
        self._page.reckoned(worker, message)

    def woken(self, message: Woken) -> None:
        """Requests waited for a cold start: counted once, however many workers say so."""
        self._own.count_cold_start(
            message.namespace,
            message.function,
            message.replica,
            message.phases,
            message.request,
        )

    def beat(self, worker: str, beat: Beat) -> None:
        """A worker lives, and requests came there."""
        self._cluster.beat(worker, beat.tasks)
        self._cluster.failed(beat.failures)
        for one in beat.arrived:
            self._history.arrivals(one.namespace, one.name, one.count)
        self._receivers.notify(beat.answered)
