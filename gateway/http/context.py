"""The HTTP side of one gateway process, put together.

Counts the requests inside, and is shut when the server goes.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from gateway.access import Access
from gateway.delivery import Delivery
from gateway.http.admission import Admissions, ColdCheck
from gateway.http.decompression import Inflation, inflating_threads
from gateway.http.reservations import BodyBudget
from gateway.metrics.counters import CounterStore
from gateway.metrics.requests import Metrics, OnColdStart
from gateway.observing.access_log import AccessLog
from gateway.observing.errors import FailureCount
from gateway.observing.tracing import Tracer
from gateway.ports import CallHistory
from gateway.replies import CLOSE
from gateway.settings import GatewaySettings
from registry.catalog import Catalog
from registry.errors import ShuttingDown


class RequestGate:
    """Who is let in leaves again, once. Used by one thread."""

    def __init__(self) -> None:
        self.is_open = True
        self.headers: tuple[tuple[str, str], ...] = ()
        """Of every answer. Once the server goes, each is the last one of its connection."""
        self.active = 0
        self._drained = asyncio.Event()

    def enter(self) -> None:
        """Come in. Raises ShuttingDown once the door is shut."""
        if not self.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        self.active += 1

    def exit(self) -> None:
        """Whoever entered goes."""
        self.active -= 1
        if not self.active:
            self._drained.set()

    async def close(self) -> None:
        """Let nobody in any more; returns when the last one has left."""
        self.is_open = False
        await self.drain()

    async def drain(self) -> None:
        """Return when nobody is inside. Until then requests of connections that are there are let
        in, but each is the last one of its connection."""
        self.headers = (CLOSE,)
        while self.active:
            self._drained.clear()
            await self._drained.wait()


class Invoker(NamedTuple):
    """What invoking needs. `wall` gives Unix seconds, `new_id` a request id that no other request
    has. Without `events` and `tracer` nothing is told of single requests; `failures`
    counts those that go wrong."""

    settings: GatewaySettings
    access: Access
    catalog: Catalog
    delivery: Delivery
    cold_check: ColdCheck
    metrics: Metrics
    history: CallHistory
    gate: RequestGate
    admissions: Admissions
    wall: Callable[[], float]
    new_id: Callable[[], str]
    access_log: AccessLog | None
    tracer: Tracer | None
    failures: FailureCount
    body_budget: BodyBudget
    inflation: Inflation


def assemble(  # noqa: PLR0913 - the parts of a gateway process
    settings: GatewaySettings,
    access: Access,
    catalog: Catalog,
    delivery: Delivery,
    history: CallHistory,
    wall: Callable[[], float],
    access_log: AccessLog | None = None,
    store: CounterStore | None = None,
    tracer: Tracer | None = None,
    on_cold_start: OnColdStart | None = None,
) -> Invoker:
    """Whatever answers calls of functions. To be called in the loop. `wall` gives Unix seconds,
    `events` and `tracer` have a record of each request, `store` has what is counted.
    `on_cold_start` takes the place of counting cold starts in this process."""
    loop = asyncio.get_running_loop()
    metrics = Metrics(
        delivery.balance,
        delivery.states,
        lambda: len(asyncio.all_tasks(loop)),
        lambda namespace, name: catalog.find(name, namespace) is not None,
        store,
        wall,
        on_cold_start,
    )
    catalog.subscribe(metrics.on_change)
    if access_log is not None:
        access_log.when_left_out(metrics.count_dropped_events)
    return Invoker(
        settings,
        access,
        catalog,
        delivery,
        ColdCheck(),
        metrics,
        history,
        RequestGate(),
        Admissions(access, catalog, settings.wait_max_s, settings.held_bytes_max),
        wall,
        request_ids(secrets.token_hex(6)),
        access_log,
        tracer,
        FailureCount(wall),
        BodyBudget(delivery, settings.held_bytes_max, monotonic),
        Inflation(inflating_threads()),
    )


def request_ids(prefix: str) -> Callable[[], str]:
    """Gives ids that begin with `prefix`, another each time, as cheaply as Python can."""
    return map(f"{prefix}-{{:x}}".format, itertools.count(1)).__next__
