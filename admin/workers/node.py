"""A gateway from its first message to its end, in whichever process it is.

`GatewayNode` serves calls by what the server sends it. `ServerClient` connects the parts of the
gateway to the pool manager and the history.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import structlog
from aiohttp import web

from admin.gateway_process import open_grpc, open_site, start_root_tasks
from admin.telemetry.logs import access_writer
from admin.telemetry.tracing import open_tracer
from admin.workers.link import Door, ServerLink
from admin.workers.messages import (
    Applied,
    Arrived,
    Beat,
    Began,
    Failed,
    Finished,
    LedgerNow,
    ListConnections,
    LoadModel,
    Pools,
    ReadLedger,
    ReadStatistics,
    Ready,
    Report,
    State,
    Stop,
    UnloadModel,
    Wants,
    Welcome,
    Woken,
)
from admin.workers.replica import CatalogReplica
from gateway.admission.access import Access
from gateway.delivery import Delivery, follow_traffic
from gateway.dispatch.dispatcher import Limits
from gateway.http.app import Gateway, Site, stop_serving
from gateway.http.boundary import ErrorBoundary
from gateway.http.connected import Connections
from gateway.http.context import Enter, assemble
from gateway.metrics.counters import CounterStore, Labels
from gateway.metrics.ledger import Balance
from gateway.metrics.samples import RateSample, RateSampler
from gateway.observing.errors import Failure
from gateway.oip.statistics import RevisionStatistics
from gateway.ports import CallHistory, ModelControl, ModelStatistics
from registry.catalog import Deployed
from registry.errors import FnError
from registry.exchange import Expected, decode_endpoints
from registry.tasks import Tasks
from registry.usage import UsageCounts, UsageRow

log = structlog.get_logger()

UNKNOWN_REVISION = Expected(0.0, 0.0, 0.0, 0)
"""Estimate for a removed revision."""
BEAT_S: Final = 1.0


class Others(Protocol):
    """Requests that are not calls."""

    enter: Enter
    """Exchanges the ticket of a request for a cookie."""

    def add_routes(self, app: web.Application, boundary: ErrorBoundary) -> None:
        """Add their routes, the last ones of `app`: they match every path."""


class Place(Protocol):
    """What differs between a gateway in a process of its own and one in the server's."""

    def open(self, welcome: Welcome) -> Others:
        """Prepare the process for a gateway; return its routes besides its own."""

    def on_ready(self) -> None:
        """Prepare the process for calls: the gateway accepts them from now on."""

    def tasks(self) -> int:
        """Return the number of background tasks of this process, 0 in the server's."""


class ServerClient(CallHistory, ModelStatistics, ModelControl):
    """The server as the gateway's ports. Plain methods do not block."""

    def __init__(self, link: ServerLink, expected: Mapping[str, Expected]) -> None:
        """`expected` is kept up to date by its owner."""
        self._link = link
        self._expected = expected
        self._arrived: dict[tuple[str, str], int] = {}
        self._used = UsageCounts()

    def receive_demand(self, data: bytes) -> None:
        """Send a Demand to the pool manager."""
        self._link.send(Wants(data))

    def worker_lost(self, worker: str) -> None:
        """Do nothing: the server sees the end of the stream."""

    def expected(self, pool: str) -> Expected:
        """Return the expected duration of a revision's next cold start."""
        return self._expected.get(pool, UNKNOWN_REVISION)

    def arrived(self, namespace: str, name: str, count: int = 1) -> None:
        """Count requests for this function, for the next beat."""
        key = (namespace, name)
        self._arrived[key] = self._arrived.get(key, 0) + count

    def used(self, row: UsageRow) -> None:
        """Add the usage of a call, for the next beat."""
        self._used.add(row)

    def on_cold_start(
        self,
        namespace: str,
        function: str,
        replica: str,
        phases: Mapping[str, float],
        request: Labels | None = None,
    ) -> None:
        """Report that a request waited for this replica. The server counts each start once."""
        self._link.send(Woken(namespace, function, replica, dict(phases), request))

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement `ModelStatistics.statistics`."""
        return await self._link.ask(ReadStatistics(list(pools)))

    async def load(self, deployed: Deployed, wait_s: float) -> None:
        """Implement `ModelControl.load`."""
        revision = deployed.revision
        await self._link.ask(LoadModel(revision.namespace, revision.ref, wait_s))

    async def unload(self, deployed: Deployed) -> None:
        """Implement `ModelControl.unload`."""
        function = deployed.function
        await self._link.ask(UnloadModel(function.namespace, function.name))

    def beat(
        self, tasks: int, answered: list[RateSample], failures: list[Failure], reasons: list[str]
    ) -> None:
        """Send a sign of life with the arrivals, responses, failures and usage since the last beat.
        Call it once per second, unless this gateway is apart."""
        arrived, self._arrived = self._arrived, {}
        counts = [Arrived(*key, count) for key, count in arrived.items()]
        self._link.send(Beat(tasks, counts, answered, failures, self._used.take(), reasons))


class GatewayNode:
    """One gateway. It ends on Stop, on `end`, and when its server is gone: then it finishes the
    requests that ready replicas can take and refuses all others."""

    def __init__(
        self, door: Door, counters: CounterStore, revisions: CounterStore, place: Place
    ) -> None:
        """`counters` holds the counters of `/metrics`, `revisions` the numbers by revision."""
        self._counters = counters
        self._revisions = revisions
        self._place = place
        self._copy = CatalogReplica()
        self._welcome: Welcome | None = None
        self._begun = asyncio.Event()
        self._seen = asyncio.Event()
        self._ended = asyncio.Event()
        handlers: dict[Any, Callable[[Any], object]] = {
            Applied: lambda _question: None,
            Report: self._report,
            ReadLedger: self._ledger,
            ListConnections: self._connections,
        }
        self._link = ServerLink(door, handlers, self._on_message)
        self._delivery: Delivery | None = None
        self.gateway: Gateway | None = None
        """None until it serves."""
        self._tasks = Tasks("worker")

    async def run(self) -> None:
        """Serve until the end."""
        self._link.open(self._on_gone)
        try:
            await self._begun.wait()
            if self._welcome is not None and not self._ended.is_set():
                await self._serve(self._welcome, self._place.open(self._welcome))
        except OSError as error:
            self._link.send(Failed(error.strerror or str(error), error.errno or 0))
        except FnError as error:
            self._link.send(Failed(error.message))
        finally:
            await self._tasks.close()
            await self._link.close()

    def end(self) -> None:
        """Accept no more requests, finish and end."""
        self._ended.set()
        self._begun.set()
        self._seen.set()

    async def _serve(self, welcome: Welcome, others: Others) -> None:
        async with AsyncExitStack() as stack:
            server = ServerClient(self._link, self._copy.expected)
            delivery = self._open_delivery(welcome, server, stack)
            gateway = self._make_gateway(welcome, delivery, server, others.enter)
            app = web.Application()
            gateway.add_routes(app)
            others.add_routes(app, gateway.boundary)
            site = await open_site(gateway, app, stack)
            delivery.open()
            # Warm functions must be known as warm before the first call arrives.
            await self._seen.wait()
            port = await site.start(reuse_port=welcome.is_shared)
            stack.push_async_callback(site.stop)
            grpc = await open_grpc(gateway, is_shared=welcome.is_shared)
            if grpc is not None:
                stack.push_async_callback(grpc.close)
            beat = self._start_beats(server, gateway, delivery)
            self._place.on_ready()
            self._link.send(Ready(port))
            await self._ended.wait()
            if grpc is not None:
                await grpc.stop()
            await _stop_listening(site)
            seconds = welcome.settings.shutdown_s
            await stop_serving(gateway, delivery, seconds, is_orphaned=self._link.is_gone)
            beat()
            self._link.send(Finished())

    def _start_beats(
        self, server: ServerClient, gateway: Gateway, delivery: Delivery
    ) -> Callable[[], None]:
        """Send a beat each second, and each time that the returned function is called."""
        metrics, failures = gateway.invoker.metrics, gateway.invoker.failures
        sampler = RateSampler(metrics.durations, metrics.first_bytes)

        def beat() -> None:
            if self._link.is_whole:  # else what it would carry waits
                reasons = [*delivery.tasks.reasons(), *self._tasks.reasons()]
                server.beat(self._place.tasks(), sampler.sample(), failures.drain(), reasons)

        start_root_tasks(self._tasks, [("beat", BEAT_S, beat)])
        return beat

    def _open_delivery(
        self, welcome: Welcome, server: ServerClient, stack: AsyncExitStack
    ) -> Delivery:
        limits = Limits(welcome.settings.held_bytes_max, welcome.settings.retries)
        delivery = Delivery(limits, welcome.name, server, server, self._counters)
        self._delivery = delivery
        stack.push_async_callback(delivery.close)
        stack.callback(follow_traffic(self._copy.catalog, delivery))
        return delivery

    def _make_gateway(
        self, welcome: Welcome, delivery: Delivery, server: ServerClient, enter: Enter
    ) -> Gateway:
        settings, copy = welcome.settings, self._copy
        access = Access(
            settings.listen,
            settings.public_hosts,
            copy.ring,
            welcome.cookie_secret,
            settings.cors_origins,
        )
        write = access_writer(welcome.log_format, is_shared=welcome.is_shared)
        invoker = assemble(
            settings,
            access,
            copy.catalog,
            delivery,
            server,
            time.time,  # noqa: TID251 - the shell passes the clock in
            write if settings.access_log else None,
            self._counters,
            open_tracer(settings, welcome.name),
            server.on_cold_start,
            enter,
            copy.upstream_keys,
            self._revisions,
            server,
            server,
        )
        self.gateway = Gateway(invoker)
        return self.gateway

    def _on_message(self, message: Welcome | State | Began | Pools | Stop) -> None:
        """Handle a message of the server."""
        if isinstance(message, Welcome):
            self._welcome = message
        elif isinstance(message, Began):
            self._begun.set()
            self._report()
        elif isinstance(message, Pools):
            self._on_endpoints(message.endpoints)
        elif isinstance(message, Stop):
            self.end()
        else:
            self._copy.apply(message)

    def _on_endpoints(self, endpoints: bytes) -> None:
        """Apply Endpoints. After this gateway's first Demand they are sent again for all pools."""
        if self._delivery is None:
            return
        self._delivery.receive_endpoints(endpoints)
        if not self._seen.is_set() and decode_endpoints(endpoints).full:
            self._seen.set()

    def _report(self, _question: Report | None = None) -> None:
        if self._delivery is not None:
            self._delivery.report()

    def _ledger(self, _question: ReadLedger) -> LedgerNow:
        """Return the ledger of all requests, and the newest exemplars of the histograms."""
        balance = Balance() if self._delivery is None else self._delivery.balance()
        gateway = self.gateway
        return LedgerNow(
            balance.accepted,
            dict(balance.ended),
            dict(balance.held),
            dict(balance.in_flight),
            [] if gateway is None else gateway.invoker.metrics.newest_exemplars(),
        )

    def _connections(self, asked: ListConnections) -> Connections:
        """Return the open exchanges of a function in this process."""
        if self.gateway is None:
            return Connections([], 0, 0)
        return self.gateway.connections(asked.namespace, asked.name)

    def _on_gone(self) -> None:
        if not self._ended.is_set():
            log.error("the server is gone: what was accepted is finished")
        if self._delivery is not None:
            self._delivery.on_manager_lost()
        self.end()


async def _stop_listening(site: Site) -> None:
    """Close the listening socket. Connections in its backlog would be reset, so accept them first;
    two turns of the event loop accept all of them."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await site.stop()
