"""A gateway in front of a small server in the test: real links, real sockets, both readers."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from gateway.admission.access import Access
from gateway.delivery import Delivery
from gateway.dispatch.call import ServerLink
from gateway.dispatch.dispatcher import Limits as DispatchLimits
from gateway.http.app import Gateway, StatePages
from gateway.http.call_route import route_calls
from gateway.http.connections import ConnectionLimit
from gateway.http.context import assemble
from gateway.http.exchanges import Exchanges
from gateway.http.fast_path import FastPath
from gateway.http.handler import HandlerFactory
from gateway.http.page_route import Entry, route_pages
from gateway.observing.access_log import AccessEvent
from gateway.pages.tickets import Tickets
from gateway.settings import GatewaySettings
from registry.catalog import Catalog, Deployed
from registry.model.functions import ExchangeLimits
from registry.model.functions import Limits as FunctionLimits
from registry.model.keys import Key
from registry.model.parks import ParkSettings
from registry.model.revisions import Interface
from registry.model.servers import HOST_OF_CLIENT, ModelApi, PathRules, ServerSettings
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint
from runtime_image.contract.link import SOCKET_NOTICE, Flag, Kind, NotStarted
from runtime_image.contract.signature import Signature
from runtime_image.link.frames import Frame
from tests.support import nouns
from tests.support.fronts.sites import Pools
from tests.support.interfaces import as_python
from tests.support.own_page import own_page
from tests.support.peers import KnownPast, published
from tests.support.sidecars import Sidecar

KEY = "default/web@1"
TOKEN = "fn_the-token-of-nobody"
SECRET = bytes(range(32))
ALIASES = ("gpt/small:1",)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def until(is_true: Callable[[], bool]) -> None:
    """Run turns of the event loop until a condition holds, at most 60 s."""
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110 - what is awaited happens in this loop
            await asyncio.sleep(0)


async def quiet(number: Callable[[], int], turns: int = 300) -> int:
    """Run turns of the event loop until a number stays the same for `turns` of them."""
    before, same = number(), 0
    while same < turns:
        await asyncio.sleep(0)
        now = number()
        same = same + 1 if now == before else 0
        before = now
    return before


class ServingSidecar(Sidecar):
    """Sidecar that grants every OPEN with a connection to the server at `port`."""

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(path)
        self.port = port
        self.got: list[Frame] = []
        self.holds = False
        """Whether OPENs wait for `release`."""
        self.listens = True
        """What the gateway is told that asks whether the server listens."""
        self.has_exchange: Callable[[int], bool] = lambda _id: True
        """Whether an OPEN is for an exchange, by its id."""
        self._held: list[int] = []

    async def serve(self) -> None:
        """Answer frames until cancelled."""
        while True:
            frame = await self.frames.get()
            self.got.append(frame)
            if frame.kind is not Kind.OPEN or frame.flags & Flag.REUSE:
                continue
            if not self.has_exchange(frame.id):
                self._answer_question(frame.id)
            elif self.holds:
                self._held.append(frame.id)
            else:
                self._connect(frame.id)

    def release(self) -> None:
        """Grant everything that was held."""
        self.holds = False
        for id in self.take_held():
            self._connect(id)

    def take_held(self) -> list[int]:
        """Return the ids of the OPENs that were held, which are the caller's from now on."""
        held, self._held = self._held, []
        return held

    def _answer_question(self, id: int) -> None:
        if self.listens:
            self.grant_ended(id)
        else:
            self.send(Kind.NOT_STARTED, id, aux=NotStarted.REFUSED)

    def grant_ended(self, id: int) -> None:
        """Grant an OPEN with a connection that the server has ended."""
        ours, theirs = socket.socketpair()
        ours.close()
        self.pass_descriptors(id, [theirs.fileno()])
        theirs.close()

    def _connect(self, id: int) -> None:
        sock = socket.socket()
        try:
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            self.send(Kind.NOT_STARTED, id, aux=NotStarted.REFUSED)
            return
        socket.send_fds(self.channels[-1], [SOCKET_NOTICE.pack(id)], [sock.fileno()])
        sock.close()

    def requested(self) -> int:
        """Return how many connections were requested. An idle one that is used again after its end
        was told has an OPEN, too."""
        opens = [frame for frame in self.got if frame.kind is Kind.OPEN]
        return sum(not frame.flags & Flag.REUSE for frame in opens)

    def kinds(self) -> list[str]:
        """Return the names of the received frames, without HELLO."""
        return [frame.kind.name for frame in self.got]


class Gate(NamedTuple):
    """One gateway under test and its server function."""

    gateway: Gateway
    delivery: Delivery
    sidecar: ServingSidecar
    exchanges: Exchanges
    sweep: Callable[[], None]
    port: int
    events: list[AccessEvent]
    fast: FastPath | None
    handed_over: list[None]
    tickets: Tickets

    async def connect(self, address: str = "127.0.0.1") -> Wire:
        """Open a client connection from an address."""
        return Wire(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0)))

    async def ask(self, request: bytes) -> bytes:
        """Return everything that the gateway sends for `request` until it closes."""
        wire = await self.connect()
        wire.send(request)
        try:
            return await wire.rest()
        finally:
            wire.close()

    def left(self) -> dict[str, Any]:
        """Return what the gateway still holds although no exchange is open."""
        there = {
            "exchanges": len(self.exchanges),
            "inside": self.gateway.gate.active,
            "bytes": self.delivery.held.bytes,
            "reservations": len(self.gateway.invoker.body_budget),
            "loads": {k: v for k, v in self.delivery.loads().items() if v.queued or v.in_flight},
        }
        return {name: what for name, what in there.items() if what}

    async def settled(self) -> None:
        """Wait until nothing is left of any exchange, and check the ledger."""
        await until(lambda: not self.left())
        balance = self.delivery.balance()
        assert balance.accepted == sum(balance.ended.values()), balance


class Wire:
    """A client's raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def head(self) -> bytes:
        """Return the next head."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)

    async def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        return await asyncio.wait_for(self.reader.readexactly(count), 60)

    async def answer(self) -> tuple[bytes, bytes]:
        """Return the head and body of the next answer, which has a Content-Length."""
        head = await self.head()
        found = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", head)
        return head, await self.exactly(int(found[1]) if found else 0)

    async def rest(self) -> bytes:
        """Return everything until the end of the connection; raises ConnectionError on a reset."""
        return await asyncio.wait_for(self.reader.read(-1), 60)

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


def server_function(
    exchange: ExchangeLimits,
    paths: PathRules,
    limits: FunctionLimits,
    ready: str,
    origins: tuple[str, ...] = (),
    api: ModelApi | None = None,
    fields: tuple[str, ...] = (),
    host: str = HOST_OF_CLIENT,
    park: ParkSettings | None = None,
) -> Deployed:
    """Return the server function "web"."""
    revision = nouns.revision(
        "web",
        model="",
        engine="server",
        signature=Signature("http", (), ()),
        server=ServerSettings(
            ("serve",),
            ready=ready,
            paths=paths,
            origins=origins,
            fields=fields,
            host=host,
            api=api,
            park=park,
        ),
    )
    aliases = ALIASES if api is not None else ()
    function = nouns.function("web", exchange=exchange, limits=limits, aliases=aliases)
    return Deployed(function, revision)


def _has_exchange(delivery: Delivery, id: int) -> bool:
    links = delivery._dispatcher.links.values()
    return any(isinstance(link, ServerLink) and link.find(id) for link in links)


@asynccontextmanager
async def gate(
    folder: Path,
    handler: Handler,
    *,
    is_fast: bool = True,
    keys: dict[str, tuple[str, ...]] | None = None,
    exchange: ExchangeLimits | None = None,
    paths: PathRules | None = None,
    limits: FunctionLimits | None = None,
    ready: str = "",
    is_cold: bool = False,
    settings: GatewaySettings | None = None,
    origins: tuple[str, ...] = (),
    api: ModelApi | None = None,
    fields: tuple[str, ...] = (),
    host: str = HOST_OF_CLIENT,
    send_buffer: int = 0,
    interface: Interface | None = None,
    cors_origins: tuple[str, ...] = (),
    park: ParkSettings | None = None,
) -> AsyncIterator[Gate]:
    """Run a gateway with one server function, whose server runs `handler` per connection.

    With `api` it is a model, too, with ALIASES; with `interface` it is a Python function.
    `send_buffer`: bytes that the kernel holds for each client, half of it for their accounting; 0
    for what it chooses. `cors_origins`: origins of the server's settings.
    """
    open_handlers: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_handlers.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()
        open_handlers.discard(task)

    made = [Key(s[3:9], fingerprint(s), scopes) for s, scopes in (keys or {}).items()]
    # With a public host the operator has said who may call without a key.
    ring = KeyRing(made, TOKEN, Openness.CLOSED if made else Openness.OPEN)
    settings = settings or GatewaySettings(port=0, fast_front=is_fast)
    dispatch_limits = DispatchLimits(settings.held_bytes_max)
    delivery = Delivery(dispatch_limits, "worker", Pools(), KnownPast())
    deployed = server_function(
        exchange or ExchangeLimits(),
        paths or PathRules(),
        limits or FunctionLimits(),
        ready,
        origins,
        api,
        fields,
        host,
        park,
    )
    if interface is not None:
        deployed = as_python(deployed, interface)
    catalog = Catalog([deployed, nouns.deployed("digits")])
    events: list[AccessEvent] = []
    access = Access("127.0.0.1", ("gpu.example",), ring, SECRET, cors_origins)
    tickets = Tickets(lambda: 0.0)
    entry = Entry(access, catalog, tickets, lambda: 0.0)
    invoker = assemble(
        settings,
        access,
        catalog,
        delivery,
        KnownPast(),
        lambda: 0.0,
        lambda batch, _lost: events.extend(batch),
        enter=entry.handle,
    )
    gateway = Gateway(invoker)
    app = web.Application()
    gateway.add_routes(app)
    StatePages(gateway.boundary, own_page(invoker.metrics), list, lambda: True).add_routes(app)
    app.on_cleanup.append(gateway.close)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        stack.push_async_callback(delivery.close)
        stack.push_async_callback(runner.cleanup)
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing runs yet
        sidecar = ServingSidecar(folder / "web", server.sockets[0].getsockname()[1])
        sidecar.has_exchange = partial(_has_exchange, delivery)
        await stack.enter_async_context(sidecar.listening())
        serving = asyncio.create_task(sidecar.serve())
        stack.callback(serving.cancel)
        made = _assembled(gateway, runner, is_fast=is_fast)
        listening = await asyncio.get_running_loop().create_server(made[0], "127.0.0.1", 0)
        if send_buffer:  # accepted sockets inherit it
            listening.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        delivery.open()
        one = Gate(
            gateway,
            delivery,
            sidecar,
            gateway.parts.exchanges,
            made[1],
            listening.sockets[0].getsockname()[1],
            events,
            made[2],
            made[3],
            tickets,
        )
        if not is_cold:
            await warm(one)
        try:
            yield one
        finally:
            listening.close()
            server.close()
            for task in list(open_handlers):
                task.cancel()
            if made[2] is not None:
                made[2].close()
            delivery.receive_endpoints(published(key=KEY))


async def warm(one: Gate) -> None:
    """Publish the replica, and wait for its link."""
    endpoint = one.sidecar.endpoint(limit=64)
    one.delivery.receive_endpoints(published(endpoint, key=KEY))
    await until(lambda: not one.delivery.is_cold(KEY))


def _assembled(
    gateway: Gateway, runner: web.AppRunner, *, is_fast: bool
) -> tuple[Callable[[], asyncio.BaseProtocol], Callable[[], None], FastPath | None, list[None]]:
    server, invoker = runner.server, gateway.invoker
    assert server is not None
    calls = route_calls(server.request_handler, invoker, gateway.writer)
    server.request_handler = route_pages(calls, invoker, gateway.parts)
    limit = ConnectionLimit(100_000, lambda: 0.0)
    seconds = invoker.settings.head_read_s
    handlers = HandlerFactory(server, gateway.writer, invoker.body_budget, seconds, limit)
    handed_over: list[None] = []

    def fallback() -> asyncio.BaseProtocol:
        handed_over.append(None)
        return handlers.adopt()

    front = FastPath(invoker, gateway.parts, fallback, limit) if is_fast else None

    def sweep() -> None:
        handlers.sweep()
        if front is not None:
            front.sweep()
        gateway.parts.exchanges.sweep()
        gateway.parts.models.sweep()
        invoker.body_budget.answers.sweep()

    return front or handlers, sweep, front, handed_over
