"""A gateway process: `python -m admin.workers.worker CONTROL COUNTERS`, two descriptors.

The supervisor alone starts it. Everything it needs comes over the control channel, so no secret
stands on its command line or in its environment. `CatalogReplica` has functions, keys and estimates
as the supervisor last sent them; through `SupervisorClient` the gateway reaches the pool manager.
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
    open_site,
    start_root_tasks,
)
from admin.telemetry import logs
from admin.workers.admin_proxy import AdminProxy
from admin.workers.channel import Channel
from admin.workers.messages import (
    Arrived,
    Beat,
    Began,
    Estimates,
    Failed,
    Finished,
    FunctionNow,
    Functions,
    KeyNow,
    Pools,
    Reach,
    Reached,
    Ready,
    Reckon,
    Reckoned,
    Stop,
    Wants,
    Welcome,
    Woken,
    decode_down,
    encode,
)
from admin.workers.shared_counters import CounterWriter
from gateway.access import Access
from gateway.delivery import Delivery, follow_traffic
from gateway.http.app import Gateway, Site, stop_serving
from gateway.http.bodies import continue_later
from gateway.metrics.counters import Labels
from gateway.metrics.ledger import Balance
from gateway.metrics.requests import Metrics, RateSample, RateSampler
from gateway.observing.errors import Failure
from registry.catalog import Catalog
from registry.exchange import Expected, decode_endpoints
from registry.store.keys import KeyRing
from registry.tasks import Tasks

UNKNOWN_REVISION = Expected(0.0, 0.0, 0.0, 0)
"""The estimate for a revision that was removed."""
log = structlog.get_logger()
BEAT_S: Final = 1.0
FLUSH_S: Final = 2.0
"""How long the last messages may take to be written."""
SetUpLog = Callable[[Literal["human", "json"]], None]


class CatalogReplica:
    """Catalog, key ring and estimates of the supervisor, as of some moment. `expected` has the
    estimated cold start of each pool."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.ring = KeyRing()
        self.expected: dict[str, Expected] = {}

    def apply(self, message: Functions | KeyNow | Estimates) -> None:
        """Apply a change of the supervisor's."""
        if isinstance(message, Functions):
            for function in message.functions:
                self._forget_estimates(function)
                apply_function(self.catalog, function)
        elif isinstance(message, KeyNow):
            (self.ring.put if message.is_let_in else self.ring.remove)(message.key)
        else:
            self.expected |= message.expected

    def _forget_estimates(self, function: FunctionNow) -> None:
        stay = {one.revision.number for one in function.revisions}
        for one in self.catalog.revisions(function.name, function.namespace):
            if one.revision.number not in stay:
                self.expected.pop(one.revision.key, None)


def apply_function(catalog: Catalog, function: FunctionNow) -> None:
    """Make the catalog's function equal to `function`, with one change per revision that differs.

    The revision with the traffic comes first: its change tells subscribers where the traffic was
    before, and the others move none.
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
    """The supervisor as the gateway's ports `Pools` and `CallHistory`. Nothing here waits."""

    def __init__(self, send: Callable[[bytes], None], expected: Mapping[str, Expected]) -> None:
        """`send` takes encoded messages, `expected` is kept up to date by its owner."""
        self._send = send
        self._expected = expected
        self._arrived: dict[tuple[str, str], int] = {}

    def receive_demand(self, data: bytes) -> None:
        """Send a Demand to the pool manager."""
        self._send(encode(Wants(data)))

    def worker_lost(self, worker: str) -> None:
        """Nothing: the supervisor sees the end of the channel."""

    def expected(self, pool: str) -> Expected:
        """How long the next cold start of a revision is expected to take."""
        return self._expected.get(pool, UNKNOWN_REVISION)

    def arrived(self, namespace: str, name: str) -> None:
        """Count a request for this function, for the next beat."""
        key = (namespace, name)
        self._arrived[key] = self._arrived.get(key, 0) + 1

    def on_cold_start(
        self,
        namespace: str,
        function: str,
        replica: str,
        phases: Mapping[str, float],
        request: Labels | None = None,
    ) -> None:
        """Report that a request waited for that replica; the supervisor counts each start once."""
        self._send(encode(Woken(namespace, function, replica, dict(phases), request)))

    def beat(self, answered: list[RateSample], failures: list[Failure]) -> None:
        """Send, once a second: this process lives, what came, was answered and failed since the
        last beat."""
        arrived, self._arrived = self._arrived, {}
        counts = [Arrived(*key, count) for key, count in arrived.items()]
        self._send(encode(Beat(len(asyncio.all_tasks()), counts, answered, failures)))


class Worker:
    """One gateway from its Welcome to its end. It ends at Stop, and when its supervisor is gone:
    then it finishes the requests that ready replicas can take and refuses all others."""

    def __init__(self, cells: CounterWriter, set_up_log: SetUpLog) -> None:
        self._counters = cells
        self._set_up_log = set_up_log
        self._catalog_replica = CatalogReplica()
        self._welcome: Welcome | None = None
        self._begun = asyncio.Event()
        self._seen = asyncio.Event()
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._channel = Channel(self._on_message, self._on_lost)
        self._delivery: Delivery | None = None
        self._metrics: Metrics | None = None
        self._tasks = Tasks("worker")

    async def run(self, control: socket.socket) -> None:
        """Serve until the end. `control` is this end of the control channel."""
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
            gateway = self._make_gateway(process, welcome, delivery, supervisor)
            site = await open_site(gateway, _application(gateway, welcome.passing), stack)
            delivery.open()
            # Warm functions are to be known as warm before the first call comes.
            await self._seen.wait()
            await site.start(reuse_port=True)
            sampler, failures = (
                RateSampler(gateway.invoker.metrics.durations),
                gateway.invoker.failures,
            )

            def beat() -> None:
                supervisor.beat(sampler.sample(), failures.drain())

            start_root_tasks(self._tasks, [("beat", BEAT_S, beat)])
            # What was made at start stays for ever: the collector need not walk it again.
            gc.collect()
            gc.freeze()
            gc.enable()
            self._send(encode(Ready()))
            await self._ended.wait()
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
        self, process: Process, welcome: Welcome, delivery: Delivery, supervisor: SupervisorClient
    ) -> Gateway:
        settings, replica = welcome.settings, self._catalog_replica
        gateway = make_gateway(
            process,
            Access(settings.listen, settings.public_hosts, replica.ring, welcome.token_sha256),
            replica.catalog,
            delivery,
            supervisor,
            self._counters,
            supervisor.on_cold_start,
        )
        self._metrics = gateway.invoker.metrics
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
        elif isinstance(message, Stop):
            self._end()
        else:
            self._catalog_replica.apply(message)

    def _on_endpoints(self, endpoints: bytes) -> None:
        """Take in Endpoints. After this gateway's first Demand they come again, for all pools."""
        if self._delivery is None:
            return
        self._delivery.receive_endpoints(endpoints)
        if not self._seen.is_set() and decode_endpoints(endpoints).full:
            self._seen.set()

    def _ledger(self, number: int) -> Reckoned:
        """Where every request is now, and which ones the histograms last counted."""
        balance = Balance() if self._delivery is None else self._delivery.balance()
        marked = [] if self._metrics is None else self._metrics.newest_exemplars()
        return Reckoned(
            number,
            balance.accepted,
            dict(balance.ended),
            dict(balance.held),
            dict(balance.in_flight),
            marked,
        )

    def _send(self, message: bytes) -> None:
        self._channel.send(message)

    def _on_lost(self, reason: str) -> None:
        if not self._ended.is_set():
            log.error("the supervisor is gone: what was accepted is finished", reason=reason)
        self._lost.set()
        if self._delivery is not None:
            self._delivery.on_manager_lost()
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._begun.set()
        self._seen.set()


def _application(gateway: Gateway, socket_path: str) -> web.Application:
    """The routes of a worker: what it does not serve itself goes to the supervisor's socket."""
    proxy = AdminProxy(socket_path)
    app = web.Application()
    gateway.add_routes(app)
    handler = gateway.boundary.wrap(proxy.handle)
    app.router.add_route("*", "/{rest:.*}", handler, expect_handler=continue_later)
    app.on_cleanup.append(proxy.close)
    return app


async def _stop_listening(site: Site) -> None:
    """Close the listening socket. Connections in its backlog would be reset, so they are accepted
    first; two turns of the loop take all of them."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await site.stop()


def main() -> int:
    """The process. Ctrl-C in a terminal reaches it, too, but the supervisor says when it is over:
    SIGINT came blocked, so that none can be too early."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    control, counters = (int(text) for text in sys.argv[1:])
    cells = CounterWriter(counters)
    # What a start makes of thousands of functions stays: collecting in between finds nothing.
    gc.disable()
    uvloop.run(_run(cells, socket.socket(fileno=control)))
    return 0


async def _run(cells: CounterWriter, control: socket.socket) -> None:
    await Worker(cells, logs.set_up).run(control)


if __name__ == "__main__":
    sys.exit(main())
