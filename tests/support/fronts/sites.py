"""Two gateways in one process over the same catalog and keys, one with the fast front."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from gateway.admission.access import Access
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.http.app import Gateway, StatePages
from gateway.http.call_route import route_calls
from gateway.http.connections import ConnectionLimit
from gateway.http.context import assemble
from gateway.http.decompression import Inflation
from gateway.http.fast_path import FastPath
from gateway.http.handler import HandlerFactory
from gateway.settings import GatewaySettings
from registry.catalog import Catalog, Deployed
from registry.model.functions import Limits as FunctionLimits
from registry.model.keys import Key
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import Frame
from runtime_image.link.stream import FrameStream
from tests.support import nouns
from tests.support.fronts.client import Client
from tests.support.fronts.requests import KEYS
from tests.support.own_page import own_page
from tests.support.peers import KnownPast, failed, published
from tests.support.peers import Peer as SilentPeer

TOKEN = "fn_the-token-of-nobody"
KEYED = KEYS
"""Keys of a server that requires keys."""
WARM = ("digits@1", "digits@2", "small@1")


class Pools:
    """Fake `Pools` port: a manager that accepts every report and does nothing."""

    def receive_demand(self, data: bytes) -> None:
        """Ignore the report."""

    def worker_lost(self, worker: str) -> None:
        """Ignore the report."""


class Replica(SilentPeer):
    """Fake replica that echoes at once. `got`: meta and body digest of each request, in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.got: list[tuple[bytes, int, str]] = []
        self.cancelled = 0
        self.answering: Callable[[Frame], None] = self.echo

    def _accept(self) -> FrameStream:
        stream = FrameStream(self._take, lambda _reason: None, "replica")
        self._streams.append(stream)
        return stream

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            self.send(Kind.HELLO, aux=VERSION)
        elif frame.kind is Kind.CANCEL:
            self.cancelled += 1
            self.send(Kind.CANCELLED, frame.id)
        elif frame.kind is Kind.REQUEST:
            digest = hashlib.sha256(frame.body).hexdigest()
            self.got.append((frame.meta, len(frame.body), digest))
            self.answering(frame)

    def echo(self, frame: Frame) -> None:
        """Return the body behind a prefix that no HTTP head starts with."""
        if b"fail" in frame.body[:20]:
            why = failed(code="bad_input", message="asked for")
            self.send(Kind.FAILED, frame.id, why)
        else:
            self.answer(frame.id, b"=" + bytes(frame.body))


class Inline(ThreadPoolExecutor):
    """Executor that runs work at once in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as an executor does
            done.set_exception(error)
        return done


class Served(NamedTuple):
    """One gateway under test. `accept` makes the protocol of a new connection."""

    gateway: Gateway
    delivery: Delivery
    replicas: tuple[Replica, ...]
    accept: Callable[[], asyncio.BaseProtocol]
    runner: web.AppRunner
    front: FastPath | None
    handed_over: list[None]
    """One entry per connection that the fast front handed over to aiohttp."""
    handlers: HandlerFactory
    """aiohttp's protocol factory for the connections."""
    ports: list[int]
    """TCP port, if it listens on one."""
    clients: set[Client]
    """Clients still connected."""

    def got(self) -> list[tuple[bytes, int, str]]:
        """Return the requests received by all replicas, replica by replica."""
        return [request for replica in self.replicas for request in replica.got]

    def forget(self) -> None:
        """Clear the record of received requests."""
        for replica in self.replicas:
            replica.got.clear()

    def sweep(self) -> None:
        """Run the per-second sweep of all connections."""
        self.handlers.sweep()
        if self.front is not None:
            self.front.sweep()

    def give_up(self) -> None:
        """Close all connections from the server's end."""
        if self.front is not None:
            self.front.close()
        assert self.runner.server is not None
        for handler in self.runner.server.connections:
            handler.force_close()

    def left(self) -> list[str]:
        """Return what the gateway still holds for closed connections."""
        front = self.front
        server = self.runner.server
        there = {
            "inside": self.gateway.gate.active,
            "loads": self.delivery.loads(),
            "bodies being received": self.delivery.slabs._filling,
            "bytes held": self.delivery.held.bytes,
            "reservations": len(self.gateway.invoker.body_budget),
            "connections": len(front.connections) if front else 0,
            "uploads": len(front.uploads) if front else 0,
            "aiohttp's connections": len(server.connections) if server else 0,
        }
        return [f"{name}: {what}" for name, what in there.items() if what]


def deployed() -> list[Deployed]:
    """Return two functions with a replica and one cold function."""
    small = nouns.function("small", limits=FunctionLimits(body_mib=1))
    return [
        nouns.deployed("digits", 1, 1),
        nouns.deployed("digits", 2, 1),
        Deployed(small, nouns.revision("small"), nouns.profile()),
        nouns.deployed("cold"),
    ]


@asynccontextmanager
async def serving(
    folder: Path, *, is_fast: bool, keys: dict[str, tuple[str, ...]] | None = None
) -> AsyncIterator[Served]:
    """Run a gateway without a listening socket. Its clock stands still, so nothing is swept."""
    made = [Key(s[3:9], fingerprint(s), scopes) for s, scopes in (keys or {}).items()]
    ring = KeyRing(made, TOKEN, Openness.CLOSED if made else Openness.OPEN)
    delivery = Delivery(Limits(), "worker", Pools(), KnownPast())
    settings = GatewaySettings(port=0, fast_front=is_fast)
    access = Access("127.0.0.1", (), ring)
    invoker = assemble(settings, access, Catalog(deployed()), delivery, KnownPast(), lambda: 0.0)
    gateway = Gateway(invoker._replace(inflation=Inflation(Inline(1))))
    app = web.Application()
    gateway.add_routes(app)
    pages = StatePages(
        gateway.boundary, own_page(invoker.metrics), list, lambda: gateway.gate.is_open
    )
    pages.add_routes(app)
    app.on_cleanup.append(gateway.close)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(delivery.close)
        stack.push_async_callback(runner.cleanup)
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - no request is being served yet
        replicas = [await _replica(folder, ref, delivery, stack) for ref in WARM]
        served = _assembled(gateway, delivery, tuple(replicas), runner)
        yield served
        await _end(served)


async def _end(served: Served) -> None:
    """Close the connections from both ends, as real servers and clients do, and unpublish the
    replicas before they close."""
    if served.front is not None:
        served.front.close()
    while served.clients:
        for client in served.clients:
            client.leave()
        await asyncio.sleep(0)
    for ref in WARM:
        served.delivery.receive_endpoints(published(key=f"default/{ref}"))


def _assembled(
    gateway: Gateway, delivery: Delivery, replicas: tuple[Replica, ...], runner: web.AppRunner
) -> Served:
    server = runner.server
    assert server is not None
    server.request_handler = route_calls(server.request_handler, gateway.invoker, gateway.writer)
    handed_over: list[None] = []
    invoker = gateway.invoker
    limit = ConnectionLimit(100_000, lambda: 0.0)
    seconds = invoker.settings.head_read_s
    handlers = HandlerFactory(server, gateway.writer, invoker.body_budget, seconds, limit)

    def fallback() -> asyncio.BaseProtocol:
        handed_over.append(None)
        return handlers.adopt()

    front = None
    if gateway.invoker.settings.fast_front:
        front = FastPath(gateway.invoker, gateway.parts, fallback, limit)
    return Served(
        gateway,
        delivery,
        replicas,
        front or handlers,
        runner,
        front,
        handed_over,
        handlers,
        [],
        set(),
    )


async def _replica(folder: Path, ref: str, delivery: Delivery, stack: AsyncExitStack) -> Replica:
    replica = await stack.enter_async_context(_listening(Replica(folder / ref)))
    key = f"default/{ref}"
    delivery.receive_endpoints(published(replica.endpoint(limit=64), key=key))
    while delivery.is_cold(key):  # noqa: ASYNC110 - turns of this loop make the link
        await asyncio.sleep(0)
    return replica


@asynccontextmanager
async def _listening(replica: Replica) -> AsyncIterator[Replica]:
    async with replica.listening():
        yield replica


@asynccontextmanager
async def both(folder: Path, keys: dict[str, tuple[str, ...]] | None) -> AsyncIterator[Pair]:
    """Run the fast gateway and the plain one."""
    async with (
        serving(folder / "f", is_fast=True, keys=keys) as fast,
        serving(folder / "p", is_fast=False, keys=keys) as plain,
    ):
        yield Pair(fast, plain)


class Pair(NamedTuple):
    """Two gateways that must answer alike."""

    fast: Served
    plain: Served


@asynccontextmanager
async def listening(served: Served) -> AsyncIterator[None]:
    """Accept connections over TCP while the block runs."""
    server = await asyncio.get_running_loop().create_server(served.accept, "127.0.0.1", 0)
    served.ports.append(server.sockets[0].getsockname()[1])
    try:
        yield
    finally:
        served.ports.clear()
        server.close()
        await server.wait_closed()


async def connect(served: Served, buffer: int | None = None) -> Client:
    """Open a connection: over TCP if the gateway listens, else over a socket pair, because there
    are too few ports for so many. `buffer` bounds the bytes in transit."""
    loop = asyncio.get_running_loop()

    def make() -> Client:
        return Client(served.clients)

    if served.ports:
        return (await loop.create_connection(make, "127.0.0.1", served.ports[0]))[1]
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        if buffer is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    await loop.connect_accepted_socket(served.accept, theirs)
    _, client = await loop.create_connection(make, sock=ours)
    return client
