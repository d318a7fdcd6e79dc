"""A gateway from its first message to its end, in whichever process it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import structlog
from aiohttp import web

from admin.gateway_process import open_grpc, open_site
from admin.telemetry.logs import access_writer
from admin.telemetry.tracing import open_tracer
from admin.workers.client import Seen, ServerClient
from admin.workers.link import Door, ServerLink
from admin.workers.messages import (
    Applied,
    Began,
    Failed,
    Finished,
    LedgerNow,
    ListConnections,
    Pools,
    ReadLedger,
    Ready,
    Report,
    State,
    Stop,
    Welcome,
)
from admin.workers.replica import CatalogReplica
from gateway.admission.access import Access
from gateway.delivery import Delivery, follow_traffic
from gateway.dispatch.dispatcher import Limits
from gateway.http.app import Gateway, Site, stop_serving
from gateway.http.boundary import ErrorBoundary
from gateway.http.connected import Connections
from gateway.http.context import Enter, assemble
from gateway.metrics.counters import CounterStore
from gateway.metrics.ledger import Balance
from gateway.metrics.samples import RateSampler
from registry.errors import FnError
from registry.exchange import decode_endpoints
from registry.tasks import Tasks

log = structlog.get_logger()

REPORT_S: Final = 1.0


class Place(Protocol):
    """What differs between a gateway in a process of its own and one in the server's: the process,
    and who answers requests that are not calls. The methods that have a default do nothing."""

    enter: Enter
    """Exchanges the ticket of a request for a cookie; there is none before `open`."""

    def open(self, welcome: Welcome) -> None:  # noqa: ARG002 - a default
        """Prepare the process for a gateway."""
        return

    def add_routes(self, app: web.Application, boundary: ErrorBoundary) -> None:
        """Add the routes of other requests, the last ones of `app`: they match every path."""

    def on_ready(self) -> None:
        """Prepare the process for calls: the gateway accepts them from now on."""
        return

    def tasks(self) -> int:
        """Return the number of background tasks of this process, 0 in the server's."""
        return 0


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
        self._server = ServerClient(self._link, self._copy.expected)
        self._delivery: Delivery | None = None
        self.gateway: Gateway | None = None
        """None until it serves."""
        self._ready: Ready | None = None
        """None until it accepts calls."""
        self._tasks = Tasks("worker")

    async def run(self) -> None:
        """Serve until the end."""
        self._link.open(self._on_gone)
        try:
            await self._begun.wait()
            if self._welcome is not None and not self._ended.is_set():
                await self._serve(self._welcome)
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

    async def _serve(self, welcome: Welcome) -> None:
        self._place.open(welcome)
        async with AsyncExitStack() as stack:
            delivery = self._open_delivery(welcome, stack)
            gateway = self._make_gateway(welcome, delivery)
            app = web.Application()
            gateway.add_routes(app)
            self._place.add_routes(app, gateway.boundary)
            site = await open_site(gateway, app, stack)
            delivery.open()
            # Warm functions must be known as warm before the first call arrives.
            await self._seen.wait()
            port = await site.start(reuse_port=welcome.is_shared)
            stack.push_async_callback(site.stop)
            grpc = await open_grpc(gateway, is_shared=welcome.is_shared)
            if grpc is not None:
                stack.push_async_callback(grpc.close)
            self._server.look = self._look(gateway, delivery)
            self._tasks.root("reports", self._keep_reporting())
            self._place.on_ready()
            self._ready = Ready(port)
            self._link.send(self._ready)
            await self._ended.wait()
            if grpc is not None:
                await grpc.stop()
            await _stop_listening(site)
            seconds = welcome.settings.shutdown_s
            await stop_serving(gateway, delivery, seconds, is_orphaned=self._link.is_gone)
            await self._server.report_last()
            self._link.send(Finished())

    def _look(self, gateway: Gateway, delivery: Delivery) -> Callable[[], Seen]:
        """Return the source of this gateway's reports."""
        invoker = gateway.invoker
        metrics, failures = invoker.metrics, invoker.failures
        sampler = RateSampler(metrics.durations, metrics.first_bytes)

        def look() -> Seen:
            invoker.key_times.flush()
            reasons = [*delivery.tasks.reasons(), *self._tasks.reasons()]
            return Seen(self._place.tasks(), sampler.sample(), failures.drain(), reasons)

        return look

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                await self._server.report()
            except Exception:  # one failed report must not end all later ones
                log.exception("a periodic action failed")

    def _open_delivery(self, welcome: Welcome, stack: AsyncExitStack) -> Delivery:
        limits = Limits(welcome.settings.held_bytes_max, welcome.settings.retries)
        delivery = Delivery(limits, welcome.name, self._server, self._server, self._counters)
        self._delivery = delivery
        stack.push_async_callback(delivery.close)
        stack.callback(follow_traffic(self._copy.catalog, delivery))
        return delivery

    def _make_gateway(self, welcome: Welcome, delivery: Delivery) -> Gateway:
        settings, copy, server = welcome.settings, self._copy, self._server
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
            self._place.enter,
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
            if self._ready is not None:  # the stream before may have ended before it arrived
                self._link.send(self._ready)
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

    async def _ledger(self, _question: ReadLedger) -> LedgerNow:
        """Return the ledger of all requests, and the newest exemplars of the histograms, after a
        report: the page then has all cold starts so far."""
        await self._server.report()
        balance = Balance() if self._delivery is None else self._delivery.balance()
        gateway = self.gateway
        marked = [] if gateway is None else gateway.invoker.metrics.newest_exemplars()
        return LedgerNow(balance, marked)

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
