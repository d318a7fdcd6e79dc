"""Tests of server functions against a faulty server: right answers pass unchanged, wrong ones
become problems that the contract names, and nobody else notices."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest

from tests.chaos.footprint import descriptors, memory_kib, pause, until
from tests.support import faulty_server
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Connection, Got, ask, chunks, connected, request
from tests.support.raw_websocket import handshake, masked, read
from tests.support.worker_server import worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 1 << 20
GROWTH_MAX_KIB = 24 * 1024
"""Max growth of one gateway process while a body stands still."""
LIMITS = "concurrency = 16\nfirst_byte_s = 1.5\nmax_s = 6"
RIGHT = [
    "/",
    f"/sized?n={MIB}",
    "/sized?n=0",
    "/chunked?n=200&size=1000",
    "/chunked?n=5&size=70000",
    "/trailers",
    "/sse?n=5&ms=5",
    "/slow-write?n=40&ms=1",
    "/hints",
    "/half-close",
    *(f"/status?code={code}" for code in (201, 204, 206, 301, 304, 404, 418, 500, 503, 599)),
]
FAILED = [
    "reset",
    "fin",
    "fin-head",
    "two-lengths",
    "length-and-chunks",
    "switches",
    "garbage",
    "endless-head",
]
"""Paths without a usable answer: 502."""
CUT = ["reset-body", "fin-body", "no-last-chunk", "bad-chunk"]
"""Paths whose answer breaks off: it must not end as if it were whole."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two gateway workers; the functions `web` and `beside` are faulty servers."""
    folder = tmp_path_factory.mktemp("servers")
    with server_process(folder / "data", "--workers", "2", "--cpu-slots", "4") as server:
        faulty_server.deploy(server, folder, "web", limits=LIMITS)
        faulty_server.deploy(server, folder, "beside", limits=LIMITS)
        yield server
        complaints = list(server.complaints)
    assert complaints == []
    assert faulty_server.survivors(server.data) == {}


@pytest.fixture(scope="module")
def direct() -> Iterator[int]:
    """The port of the same server, reached without fngate."""
    with faulty_server.running() as port:
        yield port


@pytest.fixture
async def port(server: ServerProcess) -> AsyncIterator[int]:
    """The server's port. After the test both functions answer."""
    port = urlsplit(server.url).port
    assert port is not None
    yield port
    for name in ("web", "beside"):
        got = await ask(port, "GET", f"/fn/{name}/")
        assert (got.status, bytes(got.body)) == (200, b"ready\n"), (name, got)


def gateways(server: ServerProcess) -> list[int]:
    """Return the gateway's processes."""
    assert server.process is not None
    return worker_pids(server.process.pid)


def memory(server: ServerProcess) -> dict[int, int]:
    """Return the resident KiB of each gateway process."""
    return {pid: memory_kib(pid, "Rss") for pid in gateways(server)}


def grown_kib(server: ServerProcess, before: dict[int, int]) -> int:
    """Return the largest growth of a gateway process since `before`, in KiB."""
    return max(kib - before[pid] for pid, kib in memory(server).items())


@pytest.mark.parametrize("path", RIGHT)
async def test_a_right_answer_passes_unchanged(port: int, direct: int, path: str) -> None:
    """Status, body, interim answers, trailers and the server's own fields are those of a direct
    call."""
    wanted = await ask(direct, "GET", path)
    got = await ask(port, "GET", f"/fn/web{path}")

    assert (got.status, got.end, got.interims) == (wanted.status, "whole", wanted.interims)
    assert (got.body, got.trailers) == (wanted.body, wanted.trailers)
    own = {"content-type", "cache-control", "x-said", "link"}
    assert [one for one in got.fields if one[0] in own] == [
        one for one in wanted.fields if one[0] in own
    ]


async def test_an_answer_of_http_1_0_is_whole(port: int) -> None:
    """An answer that ends with its connection is whole for the client."""
    got = await ask(port, "GET", "/fn/web/old")

    assert (got.status, bytes(got.body), got.end) == (200, b"old and whole\n", "whole")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_large_bodies_pass_both_ways(port: int, is_chunked: bool) -> None:
    """8 MiB there and back are equal, with a length and as chunks."""
    body = os.urandom(8 * MIB)
    async with connected(port) as connection:
        if is_chunked:
            pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
            head = request("POST", "/fn/web/echo", None, {"Transfer-Encoding": "chunked"})
            sending = asyncio.ensure_future(connection.send(head + chunks(pieces)))
        else:
            sending = asyncio.ensure_future(connection.send(request("POST", "/fn/web/echo", body)))
        got = await connection.answer("POST")
        await sending

    assert (got.status, got.end, len(got.body)) == (200, "whole", len(body))
    assert bytes(got.body) == body
    if is_chunked:
        assert got.trailers == [f"X-Digest: {hashlib.sha256(body).hexdigest()}"]


async def test_bodies_flow_while_they_are_sent(port: int) -> None:
    """The answer's part to the first half of a request comes before the second half is sent."""
    async with connected(port) as connection:
        head = request("POST", "/fn/web/echo", None, {"Content-Length": "20"})
        await connection.send(head + b"first half")
        async with asyncio.timeout(60):
            while b"first half" not in (said := await connection.reader.read(65536)):
                assert said
        await connection.send(b"second one")
        async with asyncio.timeout(60):
            assert await connection.reader.readexactly(10) == b"second one"


async def test_trailers_of_a_request_arrive(port: int) -> None:
    """The server gets the trailer fields of a chunked request."""
    async with connected(port) as connection:
        head = request("POST", "/fn/web/show", None, {"Transfer-Encoding": "chunked"})
        await connection.send(head + chunks([b"one", b"two"], "X-Sum: 6\r\n"))
        got = await connection.answer()

    assert got.json()["bytes"] == 6
    assert got.json()["trailers"] == ["X-Sum: 6"]


async def test_a_client_that_waits_for_100_gets_it(port: int) -> None:
    """The server's 100 reaches the client before the body is sent."""
    async with connected(port) as connection:
        fields = {"Content-Length": "4", "Expect": "100-continue"}
        await connection.send(request("POST", "/fn/web/show", None, fields))
        async with asyncio.timeout(60):
            assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await connection.send(b"body")
        got = await connection.answer()

    assert (got.status, got.json()["bytes"]) == (200, 4)


async def test_a_refused_expectation_is_told(port: int) -> None:
    """A client that waits for 100 gets the server's 417, and sends no body."""
    async with connected(port) as connection:
        fields = {"Content-Length": "4", "Expect": "100-continue"}
        await connection.send(request("POST", "/fn/web/refuses", None, fields))
        got = await connection.answer()

    assert got.status == 417


@pytest.mark.parametrize("query", ["", "?read"])
async def test_an_early_answer_reaches_a_client_that_still_sends(port: int, query: str) -> None:
    """The answer to a request whose body the server does not read is not lost."""
    got = await ask(port, "POST", f"/fn/web/early{query}", bytes(8 * MIB))

    assert (got.status, bytes(got.body), got.end) == (413, b"too large\n", "whole")


async def test_head_gets_no_body(port: int) -> None:
    """A body in the answer to HEAD, or to a 204, is dropped; the client's next call is right."""
    async with connected(port) as connection:
        for method, path, status in (
            ("HEAD", "head-body", 200),
            ("GET", "body-of-204", 204),
            ("HEAD", "sized", 200),
        ):
            await connection.send(request(method, f"/fn/web/{path}"))
            got = await connection.answer(method)
            assert got.status in (status, 502), (path, got)
            await connection.send(request("GET", "/fn/web/"))
            got = await connection.answer()
            assert bytes(got.body) == b"ready\n", (path, got)


@pytest.mark.parametrize("path", FAILED)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unusable_answer_is_a_502(port: int, method: str, path: str) -> None:
    """A server that ends the connection, or sends no valid HTTP, gives 502 `upstream_failed`."""
    body = b"x" if method == "POST" else None
    got = await ask(port, method, f"/fn/web/{path}", body, seconds=20)

    assert (got.status, got.code, got.end) == (502, "upstream_failed", "whole"), got


@pytest.mark.parametrize("path", CUT)
async def test_a_broken_answer_never_looks_whole(port: int, path: str) -> None:
    """An answer that breaks off after its head breaks off for the client."""
    got = await ask(port, "GET", f"/fn/web/{path}", seconds=20)

    assert got.status in (200, 502)
    assert got.status == 502 or got.end in ("cut", "reset"), got


async def test_a_server_that_never_answers_is_a_504(port: int) -> None:
    """After `first_byte_s` the client gets 504 `upstream_timeout`."""
    got = await ask(port, "GET", "/fn/web/never", seconds=20)

    assert (got.status, got.code) == (504, "upstream_timeout")


async def test_a_server_that_never_reads_costs_no_memory(server: ServerProcess, port: int) -> None:
    """An upload that the server does not read stands still, and ends with 504."""
    before = memory(server)
    body = bytes(64 * MIB)
    async with connected(port) as connection:
        sending = asyncio.ensure_future(
            connection.send(request("POST", "/fn/web/never-reads", body))
        )
        got = await connection.answer("POST", 20)
        grown = grown_kib(server, before)
        sending.cancel()
        await asyncio.wait([sending])

    assert (got.status, got.code) == (504, "upstream_timeout"), got
    assert grown < GROWTH_MAX_KIB


async def test_a_client_that_reads_slowly_costs_no_memory(server: ServerProcess, port: int) -> None:
    """An answer of 64 MiB that the client does not read stands still; then it is whole."""
    before = memory(server)
    async with connected(port) as connection:
        await connection.send(request("GET", f"/fn/web/sized?n={64 * MIB}"))
        async with asyncio.timeout(60):
            first = await connection.reader.readexactly(1000)
        await until_quiet(server)
        grown = grown_kib(server, before)
        left = 64 * MIB - len(first.partition(b"\r\n\r\n")[2])
        async with asyncio.timeout(30):
            while left:
                piece = await connection.reader.read(MIB)
                assert piece
                left -= len(piece)

    assert grown < GROWTH_MAX_KIB


async def until_quiet(server: ServerProcess) -> None:
    """Wait until the gateway's memory has not grown for 0.3 s."""
    last, same = memory(server), 0
    while same < 3:
        await pause(0.1)
        now = memory(server)
        same, last = (same + 1 if now == last else 0), now


@pytest.mark.parametrize(("path", "wait_s"), [("two-answers", 0), ("late-answer?ms=20", 0.1)])
async def test_a_surplus_answer_reaches_nobody(port: int, path: str, wait_s: float) -> None:
    """A second answer to one request is dropped with its connection, whether it comes with the
    first one or while the connection is idle; later calls are right.

    One that comes while the next call waits for its answer cannot be told from that answer.
    """
    for number in range(10):
        got = await ask(port, "GET", f"/fn/web/{path}", fields={"Token": f"t{number}"})
        assert (got.status, bytes(got.body)) == (200, b"first")
        await pause(wait_s)
        said = await ask(port, "GET", "/fn/web/show", fields={"Token": f"n{number}"})
        assert ["token", f"n{number}"] in said.json()["fields"]


async def test_a_websocket_echoes(port: int) -> None:
    """Messages of all sizes, pings and the closing handshake pass a WebSocket."""
    async with connected(port) as connection:
        await handshake(connection, "/fn/web/ws")
        for opcode, data in ((1, b"text"), (2, b""), (2, os.urandom(MIB)), (1, b"x" * 126)):
            sending = asyncio.ensure_future(connection.send(masked(opcode, data)))
            assert await read(connection) == (opcode, data)
            await sending
        await connection.send(masked(9, b"ping"))
        assert await read(connection) == (10, b"ping")
        await connection.send(masked(8, b"\x03\xe8"))
        assert await read(connection) == (8, b"\x03\xe8")
        assert await connection.rest(10) == b""


async def test_a_wrong_accept_is_no_websocket(port: int) -> None:
    """101 with a wrong Sec-WebSocket-Accept is 502, and no tunnel."""
    async with connected(port) as connection:
        got = await handshake(connection, "/fn/web/ws?key=wrong", wanted=502)

    assert got.code == "upstream_failed"


async def test_one_connection_serves_many_calls(port: int) -> None:
    """Requests of one client follow each other on its connection, also pipelined ones."""
    async with connected(port) as connection:
        for number in range(50):
            await connection.send(request("GET", "/fn/web/show", None, {"Token": str(number)}))
            got = await connection.answer()
            assert ["token", str(number)] in got.json()["fields"]
        numbers = range(50, 60)
        many = [request("GET", "/fn/web/show", None, {"Token": str(n)}) for n in numbers]
        await connection.send(b"".join(many))
        for number in numbers:
            got = await connection.answer()
            assert ["token", str(number)] in got.json()["fields"]


async def test_no_more_exchanges_than_the_limit(port: int) -> None:
    """Over two gateway workers, the server never sees more exchanges at once than its limit."""
    await ask(port, "GET", "/fn/web/tally?reset")

    async def one(number: int) -> Got:
        return await ask(port, "GET", "/fn/web/concurrency?ms=30", fields={"Token": str(number)})

    answers = await asyncio.gather(*(one(number) for number in range(100)))

    assert [got.status for got in answers] == [200] * 100
    assert [got.json()["token"] for got in answers] == [str(number) for number in range(100)]
    assert 1 < max(got.json()["max"] for got in answers) <= 16


async def test_nothing_stays_open(server: ServerProcess, port: int) -> None:
    """After streams that clients leave, the gateway's descriptors are as before, and the server
    has seen their ends."""
    await ask(port, "GET", "/fn/web/")
    before = [descriptors(pid).get("socket", 0) for pid in gateways(server)]

    async def leave(connection: Connection) -> None:
        await connection.send(request("GET", "/fn/web/sse?n=1000&ms=5"))
        await connection.reader.readuntil(b"data: 1 ")

    for _ in range(3):
        async with asyncio.timeout(20), connected(port) as one, connected(port) as other:
            await asyncio.gather(leave(one), leave(other))

    async def is_as_before() -> bool:
        return sum(descriptors(pid).get("socket", 0) for pid in gateways(server)) <= sum(before)

    assert await until(is_as_before, 20)
