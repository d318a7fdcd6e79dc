"""Tests of requests that a worker proxies to the supervisor, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import io
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from admin.workers import admin_proxy
from admin.workers.admin_proxy import AdminProxy, forwarded_headers
from gateway.admission.access import Access
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from registry.store.keys import KeyRing
from tests.support.operator import until

MIB = 2**20


class Upstream:
    """The supervisor's application, controlled by the test."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.cancelled = 0
        self.waiting = asyncio.Event()

    async def echo(self, request: web.Request) -> web.Response:
        """Answer with the request that arrived."""
        self.seen.append(request)
        self.bodies.append(await request.read())
        headers = CIMultiDict([("X-Two", "a"), ("X-Two", "b"), ("Keep-Alive", "timeout=9")])
        headers["ETag"] = '"7"'
        return web.Response(body=self.bodies[-1], status=207, headers=headers)

    async def refuse(self, request: web.Request) -> web.Response:
        """Answer before the body is read."""
        self.seen.append(request)
        return web.Response(status=401, text="no")

    async def wait(self, _request: web.Request) -> web.Response:
        """Never answer."""
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream two pieces, the second once the client has the first; or break off there."""
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await self.waiting.wait()
        if "break" in request.query:
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(b"second")
        return response

    async def last(self, _request: web.Request) -> web.Response:
        """Answer and close the connection."""
        return web.Response(headers={"Connection": "close"})


class Rig:
    """A worker's server in front of the upstream."""

    def __init__(self, upstream: Upstream, url: str, session: ClientSession) -> None:
        self.upstream = upstream
        self.url = url
        self._session = session

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Make a request with aiohttp's client."""
        return self._session.request(method, self.url + path, **options)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A worker's server and its upstream, both running."""
    upstream = Upstream()
    inner = web.Application(client_max_size=100 * MIB)
    for name in ("wait", "stream", "last"):
        inner.router.add_route("*", f"/{name}", getattr(upstream, name))
    inner.router.add_route("*", "/refuse", upstream.refuse, expect_handler=continue_later)
    inner.router.add_route("*", "/{rest:.*}", upstream.echo)
    runner = web.AppRunner(inner, handler_cancellation=True, auto_decompress=False)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    passing = AdminProxy(str(tmp_path / "s"))
    boundary = ErrorBoundary(Access("127.0.0.1", (), KeyRing((), "t")))
    outer = web.Application()
    passed = boundary.wrap(passing.handle)
    outer.router.add_route("*", "/{rest:.*}", passed, expect_handler=continue_later)
    outer.on_cleanup.append(passing.close)
    server = TestServer(outer)
    await server.start_server(auto_decompress=False)
    async with server, ClientSession() as session:
        yield Rig(upstream, str(server.make_url("")).rstrip("/"), session)
    await runner.cleanup()


async def test_a_request_arrives_as_it_was(rig: Rig) -> None:
    """Method, path, query, headers and body arrive unchanged, and so does the answer."""
    headers = {"If-Match": '"3"', "Authorization": "Bearer x", "Cookie": "a=b"}
    async with rig.ask(
        "PATCH", "/admin/v1/x%2Fy?next=a%26b", data=b"{}", headers=headers
    ) as answer:
        assert answer.status == 207
        assert answer.headers.getall("X-Two") == ["a", "b"]
        assert answer.headers["ETag"] == '"7"'
        assert await answer.read() == b"{}"

    [seen] = rig.upstream.seen
    assert (seen.method, seen.raw_path) == ("PATCH", "/admin/v1/x%2Fy?next=a%26b")
    assert seen.host == rig.url.removeprefix("http://")
    assert {name: seen.headers[name] for name in headers} == headers
    assert seen.headers["Content-Length"] == "2"


async def test_nothing_is_added(rig: Rig) -> None:
    """The proxy adds no headers of its own to the request."""
    skip = ["User-Agent", "Accept", "Accept-Encoding"]
    async with rig.ask("GET", "/x", skip_auto_headers=skip) as answer:
        assert answer.status == 207

    assert set(rig.upstream.seen[0].headers) == {"Host"}


async def test_fields_of_one_hop_stay_there(rig: Rig) -> None:
    """Hop-by-hop headers (RFC 9110, section 7.6.1) are not forwarded in either direction."""
    headers = {"Connection": "keep-alive, X-Mine", "X-Mine": "1", "TE": "trailers", "X-Yours": "2"}
    async with rig.ask("GET", "/x", headers=headers) as answer:
        assert "Keep-Alive" not in answer.headers

    names = set(rig.upstream.seen[0].headers)
    assert "X-Yours" in names
    assert not names & {"X-Mine", "TE", "Connection"}


def test_headers_named_by_connection_are_hop_by_hop() -> None:
    """Headers named by Connection are hop-by-hop, in any case of letters and over several
    fields."""
    headers = CIMultiDict(
        [("connection", "A"), ("Connection", "b , close"), ("a", "1"), ("B", "2")]
    )
    headers.add("Transfer-Encoding", "chunked")
    headers.add("C", "3")

    assert dict(forwarded_headers(headers)) == {"C": "3"}


@pytest.mark.parametrize("size", [1, 5 * MIB])
async def test_bodies_of_any_length_pass(rig: Rig, size: int) -> None:
    """Bodies of any length are forwarded, chunked ones too."""

    async def pieces() -> AsyncIterator[bytes]:
        for first in range(0, size, 100_000):
            yield body[first : first + 100_000]

    body = bytes(range(256)) * (size // 256) or b"x"
    for data in (io.BytesIO(body), pieces()):
        async with rig.ask("PUT", "/x", data=data) as answer:
            assert await answer.read() == body
    assert "Content-Length" in rig.upstream.seen[0].headers
    assert "Content-Length" not in rig.upstream.seen[1].headers


async def test_head_has_no_body(rig: Rig) -> None:
    """HEAD has no body and the Content-Length of the GET answer."""
    async with rig.ask("HEAD", "/refuse") as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (401, "2")
        assert await answer.read() == b""


async def test_an_upload_that_is_refused_is_answered(rig: Rig) -> None:
    """An upload refused before it is read is answered, and so is the next request on any
    connection."""
    for _ in range(5):
        async with rig.ask("PUT", "/refuse", data=io.BytesIO(bytes(20 * MIB))) as answer:
            assert (answer.status, await answer.read()) == (401, b"no")
        async with rig.ask("POST", "/x", data=b"y") as answer:
            assert await answer.read() == b"y"


async def test_answers_come_piece_by_piece(rig: Rig) -> None:
    """Each piece of a streamed answer is forwarded before the next one exists."""
    async with rig.ask("GET", "/stream") as answer:
        assert await answer.content.readany() == b"first"
        rig.upstream.waiting.set()
        assert await answer.read() == b"second"


async def test_an_answer_that_breaks_off_does_so_for_the_client(rig: Rig) -> None:
    """An answer that breaks off upstream also breaks off for the client, so that it does not look
    complete."""
    async with rig.ask("GET", "/stream?break") as answer:
        assert await answer.content.readany() == b"first"
        rig.upstream.waiting.set()
        with pytest.raises(Exception, match=r"payload|closed|[Dd]isconnect|reset"):
            await answer.read()


async def test_a_client_that_leaves_ends_its_request(rig: Rig) -> None:
    """A client that disconnects cancels its request at the supervisor."""
    asking = asyncio.create_task(_read(rig, "/wait"))
    await rig.upstream.waiting.wait()
    asking.cancel()
    await until(lambda: rig.upstream.cancelled == 1)


async def _read(rig: Rig, path: str) -> bytes:
    async with rig.ask("GET", path) as answer:
        return bytes(await answer.read())


async def test_a_connection_that_is_to_be_closed_is(rig: Rig) -> None:
    """`Connection: close` of the supervisor's answer applies to the client's connection."""
    async with rig.ask("GET", "/last") as answer:
        assert answer.headers["Connection"] == "close"


async def test_at_most_so_many_are_passed_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One proxied request over the limit is refused."""
    monkeypatch.setattr(admin_proxy, "PROXIED_MAX", 1)
    asking = asyncio.create_task(_read(rig, "/wait"))
    await rig.upstream.waiting.wait()
    async with rig.ask("GET", "/x") as answer:
        assert (answer.status, (await answer.json())["code"]) == (429, "queue_full")
    asking.cancel()
    await until(lambda: rig.upstream.cancelled == 1)
    async with rig.ask("GET", "/x") as answer:
        assert answer.status == 207


async def test_an_encoded_body_arrives_as_it_was(rig: Rig) -> None:
    """A compressed body is forwarded as it is; the supervisor decompresses it within its limits."""
    packed = gzip.compress(b"x" * 100_000)
    async with rig.ask("PUT", "/x", data=packed, headers={"Content-Encoding": "gzip"}) as answer:
        assert await answer.read() == packed

    [seen] = rig.upstream.seen
    assert seen.headers["Content-Encoding"] == "gzip"
    assert seen.headers["Content-Length"] == str(len(packed))


async def test_a_client_is_asked_for_its_body_by_the_supervisor(rig: Rig) -> None:
    """100 Continue is sent once the supervisor reads the body.

    A refusal comes without it and closes the connection, since the client may or may not send the
    body.
    """
    for path, first in (("/x", b"HTTP/1.1 100 Continue\r\n\r\n"), ("/refuse", b"HTTP/1.1 4")):
        reader, writer = await asyncio.open_connection(*rig.url.removeprefix("http://").split(":"))
        writer.write(
            b"PUT %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Length: 5\r\n\r\n" % path.encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(first)
        if path == "/x":
            writer.write(b"12345")
            assert b" 207 " in await reader.readuntil(b"\r\n\r\n")
        else:
            assert b"Connection: close" in head
        writer.close()


async def test_a_whole_url_as_target_is_its_path(rig: Rig) -> None:
    """A request target in absolute form, which every server must accept, is reduced to its path."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = (
        "GET http://localhost/a%2Fb?c HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    writer.write(request.encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert b" 207 " in answer.splitlines()[0]
    assert rig.upstream.seen[0].raw_path == "/a%2Fb?c"


async def test_without_a_supervisor_that_is_said(tmp_path: Path) -> None:
    """An absent supervisor, or one that closes the connection, is 503 with Retry-After."""
    passing = AdminProxy(str(tmp_path / "nobody"))
    boundary = ErrorBoundary(Access("127.0.0.1", (), KeyRing((), "t")))
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", boundary.wrap(passing.handle))
    app.on_cleanup.append(passing.close)
    async with TestServer(app) as server, ClientSession() as session:
        async with session.post(server.make_url("/x"), data=io.BytesIO(bytes(5 * MIB))) as answer:
            assert (answer.status, (await answer.json())["code"]) == (503, "supervisor_away")
            assert answer.headers["Retry-After"] == "1"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "nobody"))
            listener.listen()
            hanging_up = asyncio.create_task(asyncio.to_thread(_hang_up, listener))
            async with session.get(server.make_url("/x")) as answer:
                assert (answer.status, (await answer.json())["code"]) == (503, "supervisor_away")
            listener.shutdown(socket.SHUT_RDWR)
            await hanging_up


def _hang_up(listener: socket.socket) -> None:
    """Accept each connection, read a little and close it, until the listener is closed."""
    while True:
        try:
            taken, _ = listener.accept()
        except OSError:
            return
        taken.recv(100)
        taken.close()
