"""Collaborators of one gateway process that an invocation uses, and its request gate."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from gateway.admission.access import Access
from gateway.admission.control import AdmissionControl
from gateway.cold_checks.cold_check import ColdCheck
from gateway.delivery import Delivery
from gateway.http.connected import SHOWN_MAX, Connected, LastExchanges
from gateway.http.decompression import Inflation, inflating_threads
from gateway.http.reservations import BodyBudget
from gateway.metrics.counters import CounterStore
from gateway.metrics.key_times import KeyTimes
from gateway.metrics.requests import Metrics, OnColdStart
from gateway.metrics.revisions import RevisionCounts
from gateway.observing.access_log import AccessEvent, AccessLog
from gateway.observing.batching import Write
from gateway.observing.errors import FailureCount
from gateway.observing.tracing import Tracer
from gateway.ports import CallHistory, ModelControl, ModelStatistics, NoStatistics
from gateway.proxy.plan import State
from gateway.replies import CLOSE
from gateway.revocation import cut_revoked
from gateway.settings import GatewaySettings
from gateway.v1.turns import ScanTurns
from registry.catalog import Catalog
from registry.errors import ShuttingDown
from registry.upstream_keys import UpstreamKeys

if TYPE_CHECKING:
    from gateway.http.models.request import ModelRequest
    from gateway.proxy.exchange import Exchange


Enter = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Invoker(NamedTuple):
    """Collaborators of an invocation.

    `wall` returns Unix seconds, `new_id` a unique request id. Without `access_log` and `tracer`,
    single requests are not recorded. `open_exchanges`: all exchanges of this process, `arriving`:
    the requests to /v1 whose bodies arrive, `scan_turns`: of their scans. `enter` exchanges the
    ticket of a request for a cookie; without it there are no tickets. `model_control` loads and
    unloads models; without it no request can. `statistics`: those of all gateway processes.
    `closed_websockets`: the last ones that were closed because their replicas stopped.
    `last_exchanges`: those that ended last.
    """

    settings: GatewaySettings
    access: Access
    catalog: Catalog
    delivery: Delivery
    cold_check: ColdCheck
    metrics: Metrics
    history: CallHistory
    gate: RequestGate
    admission: AdmissionControl
    wall: Callable[[], float]
    new_id: Callable[[], str]
    access_log: AccessLog | None
    tracer: Tracer | None
    failures: FailureCount
    body_budget: BodyBudget
    inflation: Inflation
    open_exchanges: set[Exchange]
    arriving: set[ModelRequest]
    scan_turns: ScanTurns
    upstream_keys: UpstreamKeys
    key_times: KeyTimes
    closed_websockets: deque[tuple[str, Connected]]
    last_exchanges: LastExchanges
    enter: Enter | None = None
    model_control: ModelControl | None = None
    statistics: ModelStatistics = NoStatistics()


def assemble(  # noqa: PLR0913 - the collaborators of one gateway process
    settings: GatewaySettings,
    access: Access,
    catalog: Catalog,
    delivery: Delivery,
    history: CallHistory,
    wall: Callable[[], float],
    write_access: Write[AccessEvent] | None = None,
    store: CounterStore | None = None,
    tracer: Tracer | None = None,
    on_cold_start: OnColdStart = lambda *_: None,
    enter: Enter | None = None,
    upstream_keys: UpstreamKeys | None = None,
    revisions: CounterStore | None = None,
    statistics: ModelStatistics | None = None,
    model_control: ModelControl | None = None,
) -> Invoker:
    """Create the invoker of this process, in the event loop. `wall` returns Unix seconds.

    `write_access` writes events of the access log, `store` holds the counters of `/metrics`,
    `on_cold_start` as in `Metrics`. `enter` and `model_control` as in
    `Invoker`. `upstream_keys`: the keys of functions' servers at /v1. `revisions` holds the numbers
    by revision, `statistics` shows those of all processes.
    """
    is_deployed = _is_deployed(catalog)
    metrics = Metrics(
        is_deployed, store, wall, on_cold_start, RevisionCounts(is_deployed, revisions)
    )
    catalog.subscribe(metrics.on_change)
    dropped = metrics.count_dropped_events
    access_log = AccessLog(write_access, wall, dropped) if write_access else None
    open_exchanges: set[Exchange] = set()
    # Those that are held first: the place of another one would send them to their server.
    cut_revoked(access.ring, lambda: sorted(open_exchanges, key=_is_sent))
    return Invoker(
        *(settings, access, catalog, delivery),
        ColdCheck(),
        metrics,
        history,
        RequestGate(),
        AdmissionControl(access, catalog, settings.wait_max_s, settings.held_bytes_max),
        wall,
        request_ids(secrets.token_hex(6)),
        access_log,
        tracer,
        FailureCount(wall),
        BodyBudget(delivery.held, monotonic),
        Inflation(inflating_threads()),
        open_exchanges,
        set(),
        ScanTurns(),
        upstream_keys or UpstreamKeys(),
        KeyTimes(history, wall),
        deque(maxlen=SHOWN_MAX),
        LastExchanges(),
        enter,
        model_control,
        statistics or NoStatistics(),
    )


def _is_sent(exchange: Exchange) -> bool:
    return exchange.state is not State.HELD


def _is_deployed(catalog: Catalog) -> Callable[[str, str], bool]:
    return lambda namespace, name: catalog.find(name, namespace) is not None


def request_ids(prefix: str) -> Callable[[], str]:
    """Return a function that makes unique ids with `prefix`, without a Python frame per id."""
    return map(f"{prefix}-{{:x}}".format, itertools.count(1)).__next__


class RequestGate:
    """Counts active requests and rejects new ones during shutdown. Event loop thread only."""

    def __init__(self) -> None:
        self.is_open = True
        self.headers: tuple[tuple[str, str], ...] = ()
        """Headers added to every answer; during shutdown each is the last of its connection."""
        self.active = 0
        self._drained = asyncio.Event()

    def enter(self) -> None:
        """Count one more active request. Raises ShuttingDown if the gate is closed."""
        if not self.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        self.active += 1

    def exit(self) -> None:
        """Mark one admitted request as finished; to be called once for each `enter`."""
        self.active -= 1
        if not self.active:
            self._drained.set()

    async def close(self) -> None:
        """Admit no more requests, and wait until none is active."""
        self.is_open = False
        await self.drain()

    async def drain(self) -> None:
        """Wait until no request is active.

        Meanwhile requests on open connections are admitted, but each is the last of its connection.
        """
        self.headers = (CLOSE,)
        while self.active:
            self._drained.clear()
            await self._drained.wait()
