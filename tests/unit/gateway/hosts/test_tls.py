"""Tests of channels that are TLS connections: how they are dialled, and how they end."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.hosts import tls
from gateway.hosts.connections import HostConnections, connection_of
from gateway.hosts.tls import TlsConnection, client_context
from hosts.errors import ConnectionLost
from registry.exchange import Endpoints, TlsRoute, decode_endpoints, encode
from registry.tasks import Tasks
from runtime_image.contract.enrolment import GATEWAY_NAME
from tests.support.small_authority import SmallAuthority
from tests.support.tls_front import NAME, TlsFront, route_of, tls_front

WAIT_S = 20.0
Run = Callable[[Coroutine[Any, Any, None]], None]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


class Client(asyncio.Protocol):
    """A protocol that records its callbacks. `lost`: the argument of the last one."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.calls: list[str] = []
        self.got = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.got.set()

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.lost.set_result(exc)

    async def end(self) -> Exception | None:
        return await asyncio.wait_for(asyncio.shield(self.lost), WAIT_S)


class Echo:
    """A Unix server in a thread of its own: it says "hello", and then what it is told."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(sock,)))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):  # the dial was given up
            sock.sendall(b"hello")
            while data := sock.recv(65536):
                if data == b"bye":
                    return
                sock.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WAIT_S)


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    """A server that a connection reaches by TLS."""
    server = Echo(tmp_path / "s")
    yield server
    server.close()


@pytest.fixture
def front(echo: Echo) -> Iterator[TlsFront]:
    """Its TLS; ends before it."""
    with tls_front() as front:
        yield front


class Dialled:
    """A connection with its tasks, until the block ends."""

    def __init__(self, route: TlsRoute) -> None:
        self.tasks = Tasks("test")
        made = connection_of("gpu2", route, self.tasks)
        assert isinstance(made, TlsConnection)
        self.connection = made

    async def __aenter__(self) -> TlsConnection:
        self.connection.open()
        return self.connection

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()
        await self.tasks.close()


def _say_bye(_: TlsFront, transport: asyncio.Transport) -> None:
    transport.write(b"bye")


def _send_on(front: TlsFront, transport: asyncio.Transport) -> None:
    front.fall_silent()
    transport.write(b"is anybody there")


ENDS: dict[str, tuple[Callable[[TlsFront, asyncio.Transport], None], str, list[str]]] = {
    "close_notify": (_say_bye, "", ["eof", "lost"]),
    "the end of TCP's stream": (lambda front, _: front.end_tcp(), "close_notify", ["lost"]),
    "reset": (lambda front, _: front.reset(), "broke", ["lost"]),
    "silence": (_send_on, "no sign", ["lost"]),
}


@both_loops
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_paused", [False, True])
def test_only_close_notify_is_an_end_in_order(
    run: Run,
    end: str,
    is_paused: bool,
    front: TlsFront,
    echo: Echo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything else is a broken connection, whose requests may have arrived. What came before the
    end is delivered, also after a pause; while it lasts, only a dead connection ends."""
    monkeypatch.setattr(tls, "SILENT_S", 0.3)
    monkeypatch.setattr(tls, "WATCH_S", 0.05)
    happen, text, calls = ENDS[end]

    async def play() -> None:
        async with Dialled(front.route) as connection:
            client = Client()
            transport = await connection.dial(front.address(echo.path), client)
            await asyncio.wait_for(client.got.wait(), WAIT_S)
            if is_paused:
                transport.pause_reading()
            happen(front, transport)
            if is_paused and end != "silence":
                await asyncio.sleep(0)
                transport.resume_reading()
            error = await client.end()

        assert client.received == b"hello"
        assert client.calls == calls
        assert (error is None) is not bool(text)
        assert isinstance(error, ConnectionLost | None)
        assert text in str(error)

    run(play())


@both_loops
def test_an_answer_that_came_before_a_reset_is_read(run: Run) -> None:
    """A server answers early and closes while the request is being written."""
    authority = SmallAuthority()

    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with authority.credentials(NAME).server(sock) as peer:
            peer.sendall(b"too large")
            peer.shutdown(socket.SHUT_WR)
            read.wait(WAIT_S)

    async def play() -> None:
        async with Dialled(route_of(authority)) as connection:
            client = Client()
            where = f"tls://127.0.0.1:{listener.getsockname()[1]}/{NAME}"
            transport = await connection.dial(where, client)
            transport.pause_reading()
            transport.write(bytes(32 * 2**20))  # more than the kernel takes
            read.set()
            await client.end()

        assert client.received == b"too large"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        read = threading.Event()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        run(play())
        thread.join()


@both_loops
def test_bytes_that_are_no_tls_end_a_channel(run: Run, front: TlsFront, echo: Echo) -> None:
    """As broken, with OpenSSL's reason."""

    async def play() -> None:
        async with Dialled(front.route) as connection:
            client = Client()
            await connection.dial(front.address(echo.path), client)
            await asyncio.wait_for(client.got.wait(), WAIT_S)
            (peer,) = front.open
            socket.socket.sendall(peer, b"HTTP/1.1 200 OK\r\n\r\n")
            error = await client.end()

        assert isinstance(error, ConnectionLost)
        assert "not as TLS demands it" in str(error)

    run(play())


@pytest.fixture
async def dialled(front: TlsFront) -> AsyncIterator[TlsConnection]:
    """A connection to the front."""
    async with Dialled(front.route) as connection:
        yield connection


async def failed(connection: TlsConnection, address: str) -> str:
    """Return the reason why a dial fails; its protocol gets no callback."""
    client = Client()
    with pytest.raises(ConnectionLost) as found:
        await asyncio.wait_for(connection.dial(address, client), WAIT_S)
    assert not client.calls
    assert address in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tls://127.0.0.1:1/r1.replica.fngate", "Connect call failed"),
        ("tls://127.0.0.1:1", "name of the replica"),
        ("tls://localhost:1/r1.replica.fngate", "IPv4 or IPv6 address"),
        ("tls://127.0.0.1:99999/r1.replica.fngate", "expected tls://HOST:PORT"),
        ("/run/data.sock", "expected tls://HOST:PORT"),
    ],
)
async def test_a_dial_that_fails_names_address_and_reason(
    dialled: TlsConnection, address: str, reason: str
) -> None:
    """A name is not looked up: no other server decides where a replica is."""
    assert reason in await failed(dialled, address)


async def test_a_peer_of_another_name_is_refused(echo: Echo, dialled: TlsConnection) -> None:
    """Another replica listens at that address; it has a certificate, of its own name."""
    other = TlsFront(name="r2.replica.fngate")
    try:
        dialled.renew(other.route)
        address = other.address(echo.path).replace("r2.", "r1.")
        assert "Hostname mismatch" in await failed(dialled, address)
    finally:
        other.close()


async def test_a_peer_of_another_authority_is_refused(
    front: TlsFront, echo: Echo, dialled: TlsConnection
) -> None:
    """The server was restored, and has a new one."""
    dialled.renew(route_of(SmallAuthority()))

    assert "certificate verify failed" in await failed(dialled, front.address(echo.path))


async def test_a_gateway_that_the_replica_refuses_learns_it_as_a_broken_channel(
    front: TlsFront, echo: Echo, dialled: TlsConnection
) -> None:
    """In TLS 1.3 the client's handshake is over before the server has seen its certificate."""
    identity = front.authority.issue("r2.replica.fngate")
    dialled.renew(TlsRoute(front.authority.pem, identity["certificate"], identity["key"]))
    client = Client()

    await dialled.dial(front.address(echo.path), client)

    assert isinstance(await client.end(), ConnectionLost)
    assert not client.received


async def test_an_earlier_version_of_tls_is_refused(
    dialled: TlsConnection, front: TlsFront, tmp_path: Path
) -> None:
    """TLS 1.2 shows certificates to everybody on the way."""
    identity = tmp_path / "identity"
    identity.write_text("".join(front.authority.issue(NAME).values()))  # type: ignore[arg-type]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    reason = await failed(dialled, f"tls://127.0.0.1:{port}/{NAME}")

    server.close()
    assert "within the handshake" in reason


@pytest.mark.parametrize("route", [TlsRoute("", "", "SECRET"), TlsRoute("x", "y", "SECRET")])
async def test_certificates_that_cannot_be_used_fail_the_dial(
    dialled: TlsConnection, route: TlsRoute, front: TlsFront, echo: Echo
) -> None:
    """Not the process; the text has no part of the key."""
    dialled.renew(route)

    assert "SECRET" not in await failed(dialled, front.address(echo.path))


async def test_dials_are_limited_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica that shakes no hands holds one place for HANDSHAKE_S, and no second one begins."""
    monkeypatch.setattr(tls, "DIALS_MAX", 1)
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.2)
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    address = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}/{NAME}"
    async with Dialled(route_of(SmallAuthority())) as connection:
        dials = [asyncio.ensure_future(failed(connection, address)) for _ in range(3)]
        reason = await dials[0]
        before = len(accepted)
        await asyncio.gather(*dials)

    server.close()
    for writer in accepted:
        writer.close()
    assert before <= 2
    assert len(accepted) == 3
    assert "no TLS handshake in time" in reason


async def test_a_replica_that_cannot_be_reached_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, front: TlsFront, echo: Echo
) -> None:
    """All replicas of an engine are dialled over one connection."""
    monkeypatch.setattr(tls, "DIALS_MAX", 1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"tls://127.0.0.1:{deaf.getsockname()[1]}/{NAME}"
        async with Dialled(front.route) as connection:
            stuck = asyncio.ensure_future(connection.dial(address, Client()))
            peer, _ = await asyncio.to_thread(deaf.accept)
            other = await connection.dial(front.address(echo.path), Client())

            assert not stuck.done()
            other.abort()
            stuck.cancel()
            await asyncio.wait({stuck})
            peer.close()


async def test_a_cancelled_dial_leaves_nothing(front: TlsFront, echo: Echo) -> None:
    """The leak check finds sockets that stay open."""
    async with Dialled(front.route) as connection:
        for turns in range(6):
            dial = asyncio.ensure_future(connection.dial(front.address(echo.path), Client()))
            for _ in range(turns):
                await asyncio.to_thread(os.sched_yield)
            dial.cancel()
            await asyncio.wait({dial})


@both_loops
@pytest.mark.parametrize("turns", range(4))
def test_a_dial_given_up_closes_no_descriptor_of_others(
    run: Run, turns: int, front: TlsFront, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    """A dial that ends while the event loop takes over its socket closes the descriptor once: the
    number may be that of another file a turn later. It is no error for the log."""

    async def play() -> None:
        async with Dialled(front.route) as connection:
            dial = asyncio.ensure_future(connection.dial(front.address(echo.path), Client()))
            begun = None
            async with asyncio.timeout(WAIT_S):
                for turn in itertools.count():
                    if begun is None and connection._channels:
                        begun = turn
                    if begun is not None and turn == begun + turns:
                        break
                    await asyncio.sleep(0)
            dial.cancel()
            others = []
            for _ in range(6):
                await asyncio.sleep(0)
                others.append(os.open(os.devnull, os.O_RDONLY))
            await asyncio.wait({dial})
            del dial
            gc.collect()
            for other in others:
                os.close(other)

    run(play())
    assert not caplog.records


async def test_a_closed_connection_ends_its_channels_and_dials_nothing(
    front: TlsFront, echo: Echo
) -> None:
    """As broken: the calls on them may run."""
    client = Client()
    async with Dialled(front.route) as connection:
        await connection.dial(front.address(echo.path), client)

    assert isinstance(await client.end(), ConnectionLost)
    assert "has left the host" in await failed(connection, front.address(echo.path))
    with pytest.raises(ConnectionError, match="closed"):
        await connection.wait_up(1)


async def test_a_renewed_certificate_cuts_nothing(front: TlsFront, echo: Echo) -> None:
    """The open channel goes on; the next dial shows the new one."""
    tasks = Tasks("test")
    hosts = HostConnections(connection_of, tasks, lambda _: True)
    hosts.update({"gpu2": front.route}, 1.0)
    route = hosts.route("gpu2")
    client = Client()
    transport = await route.bodies.dial(front.address(echo.path), client)

    hosts.update({"gpu2": route_of(front.authority, epoch=9)}, 2.0)
    transport.write(b"still here")
    async with asyncio.timeout(WAIT_S):
        while client.received != b"hellostill here":
            client.got.clear()
            await client.got.wait()
    other = await route.bodies.dial(front.address(echo.path), Client())
    earlier = hosts.route("gpu2")
    hosts.update({"gpu2": front.route}, 3.0)
    refused = Client()
    await route.bodies.dial(front.address(echo.path), refused)

    assert earlier == hosts.route("gpu2") == route
    assert isinstance(await refused.end(), ConnectionLost)  # of an earlier epoch: refused there
    assert not client.lost.done()
    assert route.bodies.rtt_s > 0
    other.abort()
    await hosts.close()
    await tasks.close()


def test_no_key_is_shown() -> None:
    """Not by `repr` of the route or of a message that has it; workers get it whole."""
    route = TlsRoute("authority", "certificate", "SECRET", 7)
    message = Endpoints(1, True, {}, {"gpu2": route})

    assert "SECRET" not in f"{route} {message!r} {[*route.__rich_repr__()]}"
    assert decode_endpoints(encode(message)).hosts == {"gpu2": route}


def test_one_context_serves_all_hosts() -> None:
    """To make one takes longer than a dial, and 200 hosts have 400 connections."""
    authority = SmallAuthority()
    identity = authority.issue(GATEWAY_NAME)
    routes = [TlsRoute(authority.pem, identity["certificate"], identity["key"]) for _ in range(2)]

    assert client_context(routes[0]) is client_context(routes[1])
