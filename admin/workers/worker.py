"""A gateway process: `python -m admin.workers CONTROL COUNTERS REVISIONS` (descriptors).

Started by the supervisor only. Its whole configuration arrives over the control channel, so its
command line and its environment hold no secrets. `CatalogReplica` has functions, keys and estimates
as last sent by the supervisor. `SupervisorClient` connects the gateway to the pool manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final, Literal

import structlog
import uvloop
from aiohttp import web

from admin.buffers import keep_large_buffers
from admin.gateway_process import (
    Process,
    make_delivery,
    make_gateway,
    open_grpc,
    open_site,
    start_root_tasks,
)
from admin.telemetry import logs
from admin.workers.admin_proxy import AdminProxy
from admin.workers.channel import Channel
from admin.workers.messages import (
    Arrived,
    AskConnected,
    Beat,
    Began,
    Estimates,
    Failed,
    Finished,
    FunctionNow,
    Functions,
    KeyNow,
    LoadEnded,
    OpennessNow,
    Pools,
    Reach,
    Reached,
    Ready,
    Reckon,
    Reckoned,
    Stop,
    TellConnected,
    TellStatistics,
    UpstreamKeyNow,
    Wants,
    Welcome,
    Woken,
    decode_down,
    encode,
)
from admin.workers.model_control import RemoteModels
from admin.workers.shared_counters import CounterWriter
from admin.workers.statistics import StatisticsQuestions
from gateway.admission.access import Access
from gateway.delivery import Delivery, follow_traffic
from gateway.http.app import Gateway, Site, stop_serving
from gateway.http.bodies import continue_later
from gateway.http.connected import Connections
from gateway.http.page_route import guarded
from gateway.metrics.counters import Labels
from gateway.metrics.ledger import Balance
from gateway.metrics.samples import RateSample, RateSampler
from gateway.observing.errors import Failure
from registry.catalog import Catalog
from registry.exchange import Expected, decode_endpoints
from registry.openness import Openness
from registry.store.keys import KeyRing
from registry.tasks import Tasks
from registry.upstream_keys import UpstreamKeys
from registry.usage import UsageCounts, UsageRow

UNKNOWN_REVISION = Expected(0.0, 0.0, 0.0, 0)
"""Estimate for a removed revision."""
log = structlog.get_logger()
BEAT_S: Final = 1.0
PUBLIC: Final = ("/openapi.json", "/docs")
"""Paths of the supervisor that are the same for everybody: pages of other sites may link there."""
StateMessage = Functions | KeyNow | OpennessNow | UpstreamKeyNow | Estimates
"""What a worker's copy of the supervisor's state is kept by."""
FLUSH_S: Final = 2.0
"""Max seconds to write the last messages."""
SetUpLog = Callable[[Literal["human", "json"]], None]


class CatalogReplica:
    """Copy of the supervisor's catalog, keys and estimates. `expected` has the estimated cold
    start of each pool."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.ring = KeyRing(openness=Openness.CLOSED)
        self.upstream_keys = UpstreamKeys()
        self.expected: dict[str, Expected] = {}

    def apply(self, message: StateMessage) -> None:
        """Apply a change that the supervisor sent."""
        if isinstance(message, Functions):
            for function in message.functions:
                self._forget_estimates(function)
                apply_function(self.catalog, function)
        elif isinstance(message, KeyNow):
            (self.ring.put if message.is_let_in else self.ring.remove)(message.key)
        elif isinstance(message, OpennessNow):
            self.ring.decide(message.openness)
        elif isinstance(message, UpstreamKeyNow):
            self._apply_upstream_key(message)
        else:
            self.expected |= message.expected

    def _apply_upstream_key(self, message: UpstreamKeyNow) -> None:
        key = message.key
        if message.is_kept:
            self.upstream_keys.put(key)
        else:
            self.upstream_keys.remove(key.secret, key.namespace)

    def _forget_estimates(self, function: FunctionNow) -> None:
        stay = {one.revision.number for one in function.revisions}
        for one in self.catalog.revisions(function.name, function.namespace):
            if one.revision.number not in stay:
                self.expected.pop(one.revision.key, None)


def apply_function(catalog: Catalog, function: FunctionNow) -> None:
    """Make the catalog's function equal to `function`, with one change per differing revision.

    The revision with the traffic comes first: its change names the previous one for subscribers,
    and the changes after it move no traffic.
    """
    namespace, name = function.namespace, function.name
    if not function.revisions:
        if catalog.revisions(name, namespace):
            catalog.remove(name, namespace)
        return
    before = {one.revision.number: one for one in catalog.revisions(name, namespace)}
    current = function.revisions[0].function.revision
    for one in sorted(function.revisions, key=lambda one: one.revision.number != current):
        if before.get(one.revision.number) != one:
            catalog.put(one)
    gone = before.keys() - {one.revision.number for one in function.revisions}
    if gone:
        catalog.remove_revisions(name, gone, namespace)


class SupervisorClient:
    """The supervisor as the gateway's ports `Pools` and `CallHistory`. No method blocks."""

    def __init__(self, send: Callable[[bytes], None], expected: Mapping[str, Expected]) -> None:
        """`send` takes encoded messages; `expected` is kept up to date by its owner."""
        self._send = send
        self._expected = expected
        self._arrived: dict[tuple[str, str], int] = {}
        self._used = UsageCounts()

    def receive_demand(self, data: bytes) -> None:
        """Send a Demand to the pool manager."""
        self._send(encode(Wants(data)))

    def worker_lost(self, worker: str) -> None:
        """Do nothing: the supervisor sees the end of the channel."""

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
        """Report that a request waited for this replica. The supervisor counts each start once."""
        self._send(encode(Woken(namespace, function, replica, dict(phases), request)))

    def beat(self, answered: list[RateSample], failures: list[Failure]) -> None:
        """Send a sign of life with the arrivals, responses, failures and usage since the last beat.
        Call it once per second."""
        arrived, self._arrived = self._arrived, {}
        counts = [Arrived(*key, count) for key, count in arrived.items()]
        tasks = len(asyncio.all_tasks())
        self._send(encode(Beat(tasks, counts, answered, failures, self._used.take())))


class Worker:
    """One gateway from its Welcome to its end. It ends on Stop, and when its supervisor has died:
    then it finishes the requests that ready replicas can take and refuses all others."""

    def __init__(
        self, cells: CounterWriter, revisions: CounterWriter, set_up_log: SetUpLog
    ) -> None:
        """`cells` has the counters, `revisions` the numbers by revision."""
        self._counters = cells
        self._revisions = revisions
        self._set_up_log = set_up_log
        self._catalog_replica = CatalogReplica()
        self._welcome: Welcome | None = None
        self._begun = asyncio.Event()
        self._seen = asyncio.Event()
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._channel = Channel(self._on_message, self._on_lost)
        self._statistics = StatisticsQuestions(self._send)
        self._models = RemoteModels(self._send)
        self._delivery: Delivery | None = None
        self._gateway: Gateway | None = None
        self._tasks = Tasks("worker")

    async def run(self, control: socket.socket) -> None:
        """Serve until the end. `control` is this process's end of the control channel."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        await self._channel.open(control)
        try:
            await self._begun.wait()
            if self._welcome is not None and not self._ended.is_set():
                self._set_up_log(self._welcome.log_format)
                if self._welcome.keeps_buffers:
                    keep_large_buffers()
                await self._serve(self._welcome)
        except OSError as error:
            self._send(encode(Failed(str(error))))
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            await self._tasks.close()
            self._channel.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._lost.wait()

    async def _serve(self, welcome: Welcome) -> None:
        async with AsyncExitStack() as stack:
            supervisor = SupervisorClient(self._send, self._catalog_replica.expected)
            process = Process(welcome.name, welcome.settings, welcome.log_format, is_shared=True)
            delivery = self._open_delivery(process, supervisor, stack)
            proxy = AdminProxy(welcome.passing)
            gateway = self._make_gateway(process, welcome, delivery, supervisor, proxy)
            site = await open_site(gateway, _application(gateway, proxy), stack)
            delivery.open()
            # Warm functions must be known as warm before the first call arrives.
            await self._seen.wait()
            await site.start(reuse_port=True)
            grpc = await open_grpc(gateway, is_shared=True)
            if grpc is not None:
                stack.push_async_callback(grpc.close)
            metrics, failures = gateway.invoker.metrics, gateway.invoker.failures
            sampler = RateSampler(metrics.durations, metrics.first_bytes)

            def beat() -> None:
                supervisor.beat(sampler.sample(), failures.drain())

            start_root_tasks(self._tasks, [("beat", BEAT_S, beat)])
            # Objects of the start live for ever: exclude them from later collections.
            gc.collect()
            gc.freeze()
            gc.enable()
            self._send(encode(Ready()))
            await self._ended.wait()
            if grpc is not None:
                await grpc.stop()
            await _stop_listening(site)
            seconds = welcome.settings.shutdown_s
            await stop_serving(gateway, delivery, seconds, is_orphaned=self._lost.is_set())
            beat()
            self._send(encode(Finished()))

    def _open_delivery(
        self, process: Process, supervisor: SupervisorClient, stack: AsyncExitStack
    ) -> Delivery:
        delivery = make_delivery(process, supervisor, supervisor, self._counters)
        self._delivery = delivery
        stack.push_async_callback(delivery.close)
        stack.callback(follow_traffic(self._catalog_replica.catalog, delivery))
        return delivery

    def _make_gateway(
        self,
        process: Process,
        welcome: Welcome,
        delivery: Delivery,
        supervisor: SupervisorClient,
        proxy: AdminProxy,
    ) -> Gateway:
        settings, replica = welcome.settings, self._catalog_replica
        gateway = make_gateway(
            process,
            Access(
                settings.listen,
                settings.public_hosts,
                replica.ring,
                welcome.cookie_secret,
                settings.cors_origins,
            ),
            replica.catalog,
            delivery,
            supervisor,
            self._counters,
            supervisor.on_cold_start,
            guarded(proxy.handle),
            replica.upstream_keys,
            self._revisions,
            self._statistics,
            self._models,
        )
        self._gateway = gateway
        return gateway

    def _on_message(self, data: bytes) -> None:
        """Handle a message of the supervisor."""
        message = decode_down(data)
        if isinstance(message, Welcome):
            self._welcome = message
        elif isinstance(message, Began):
            self._begun.set()
        elif isinstance(message, Pools):
            self._on_endpoints(message.endpoints)
        elif isinstance(message, Reach):
            self._send(encode(Reached(message.number)))
        elif isinstance(message, Reckon):
            self._send(encode(self._ledger(message.number)))
        elif isinstance(message, AskConnected):
            self._send(encode(TellConnected(message.number, self._connections(message))))
        elif isinstance(message, TellStatistics):
            self._statistics.on_told(message)
        elif isinstance(message, LoadEnded):
            self._models.on_ended(message)
        elif isinstance(message, Stop):
            self._end()
        else:
            self._catalog_replica.apply(message)

    def _on_endpoints(self, endpoints: bytes) -> None:
        """Apply Endpoints. After this gateway's first Demand they are sent again for all pools."""
        if self._delivery is None:
            return
        self._delivery.receive_endpoints(endpoints)
        if not self._seen.is_set() and decode_endpoints(endpoints).full:
            self._seen.set()

    def _ledger(self, number: int) -> Reckoned:
        """Return the ledger of all requests, and the newest exemplars of the histograms."""
        balance = Balance() if self._delivery is None else self._delivery.balance()
        gateway = self._gateway
        marked = [] if gateway is None else gateway.invoker.metrics.newest_exemplars()
        return Reckoned(
            number,
            balance.accepted,
            dict(balance.ended),
            dict(balance.held),
            dict(balance.in_flight),
            marked,
        )

    def _connections(self, asked: AskConnected) -> Connections:
        """Return the open exchanges of a function in this process."""
        if self._gateway is None:
            return Connections([], 0, 0)
        return self._gateway.connections(asked.namespace, asked.name)

    def _send(self, message: bytes) -> None:
        self._channel.send(message)

    def _on_lost(self, reason: str) -> None:
        if not self._ended.is_set():
            log.error("the supervisor is gone: what was accepted is finished", reason=reason)
        self._lost.set()
        self._models.on_lost()
        if self._delivery is not None:
            self._delivery.on_manager_lost()
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._begun.set()
        self._seen.set()


def _application(gateway: Gateway, proxy: AdminProxy) -> web.Application:
    """Return a worker's routes; requests that it does not serve go to the supervisor."""
    app = web.Application()
    gateway.add_routes(app)
    public = gateway.boundary.wrap(proxy.handle, is_linked=True)
    for path in PUBLIC:
        app.router.add_route("*", path, public, expect_handler=continue_later)
    handler = gateway.boundary.wrap(proxy.handle)
    app.router.add_route("*", "/{rest:(?s:.*)}", handler, expect_handler=continue_later)
    app.on_cleanup.append(proxy.close)
    return app


async def _stop_listening(site: Site) -> None:
    """Close the listening socket. Connections in its backlog would be reset, so accept them first;
    two turns of the event loop accept all of them."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await site.stop()


def main() -> int:
    """Run the process. It ignores Ctrl-C in a terminal, as the supervisor stops it. The supervisor
    started it with SIGINT blocked, so that no SIGINT arrives too early."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    control, counters, numbers = (int(text) for text in sys.argv[1:])
    cells, revisions = CounterWriter(counters), CounterWriter(numbers)
    uvloop.run(_run(cells, revisions, socket.socket(fileno=control)))
    return 0


async def _run(cells: CounterWriter, revisions: CounterWriter, control: socket.socket) -> None:
    await Worker(cells, revisions, logs.set_up).run(control)
