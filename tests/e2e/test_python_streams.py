"""Tests of streams of Python functions through the gateway: forms, failures, limits, clients that
leave, deaths. `tests/chaos/python_streams.py` has many at once over sleep and rollout."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.chaos.footprint import until
from tests.support import faulty_server, stream_function
from tests.support.doses import amount
from tests.support.package_index import PackageIndex, package_index
from tests.support.process_server import ServerProcess, server_process, wait_end
from tests.support.raw_http import Got, ask, connected, request
from tests.support.raw_websocket import handshake, masked, read
from tests.support.stream_function import asked, call, events, told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

KINDS = ("plain", "async")
both = pytest.mark.parametrize("name", KINDS)
ENDS_S = 20.0
LATE = "concurrency = 2\ntimeout_s = 0.5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of data and functions."""
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """An index with msgspec as it is installed here."""
    with package_index() as index:
        index.add_installed("msgspec")
        yield index


@pytest.fixture(scope="module")
def server(folder: Path, index: PackageIndex) -> Iterator[ServerProcess]:
    """A server of two gateway processes, with a function of each kind."""
    options = ("--workers", "2", "--cpu-slots", "3")
    config = {"FN_UV_CONFIG": str(index.config(folder))}
    with server_process(folder / "data", *options, environment=config) as server:
        for name in KINDS:
            stream_function.deploy(server, folder, name, name)
        yield server
    assert list(server.complaints) == []


@pytest.fixture
def port(server: ServerProcess) -> int:
    """The server's port."""
    port = urlsplit(server.url).port
    assert port is not None
    return port


@both
@pytest.mark.parametrize(
    ("form", "accept", "content_type", "body"),
    [
        ("dict", "", "text/event-stream", b'data: {"i":0}\n\ndata: {"i":1}\n\n'),
        ("dict", "application/x-ndjson", "application/x-ndjson", b'{"i":0}\n{"i":1}\n'),
        ("str", "", "text/event-stream", b"data: t0\n\ndata: t1\n\n"),
        ("str", "application/x-ndjson", "application/x-ndjson", b'"t0"\n"t1"\n'),
        ("str", "text/plain", "text/plain; charset=utf-8", b"t0t1"),
        ("bytes", "", "application/octet-stream", b"0\n1\n"),
    ],
)
async def test_values_come_in_the_form_that_is_accepted(
    port: int, name: str, form: str, accept: str, content_type: str, body: bytes
) -> None:
    """Through the gateway, and over HTTP/1.0, whose answers end with the connection."""
    got = await call(port, name, accept, n=2, form=form)
    async with connected(port) as connection:
        old = asked(name, accept, n=2, form=form).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        await connection.send(old)
        head, _, rest = (await connection.rest()).partition(b"\r\n\r\n")

    assert (got.status, got.get("content-type"), got.body, got.end) == (
        *(200, content_type, body),
        "whole",
    )
    assert (head.split()[1], rest) == (b"200", body)
    assert b"transfer-encoding" not in head.lower()


@both
async def test_a_failure_is_an_answer_an_event_or_a_cut(port: int, name: str) -> None:
    """Before the first value an answer with its status; then an event, or a cut body."""
    first = await call(port, name, n=3, fail=0)
    middle = await call(port, name, n=3, fail=2)
    cut = [
        await call(port, name, accept, n=3, fail=2, form=form)
        for form, accept in (("bytes", ""), ("str", "text/plain"), ("dict", "application/x-ndjson"))
    ]

    assert (first.status, first.code, first.end) == (500, "function_failed", "whole")
    assert not first.get("fn-traceback")
    assert (middle.status, middle.end) == (200, "whole")
    found = events(middle.body)
    assert (found.numbers, found.error and found.error["code"]) == ([0, 1], "function_failed")
    assert [(one.status, one.end, bool(one.body)) for one in cut] == [(200, "cut", True)] * 3


@both
@pytest.mark.parametrize("count", [0, 1, amount(10_000, 100_000)])
async def test_streams_of_any_length_are_whole(port: int, name: str, count: int) -> None:
    """No value, one, many: each once and in order; the connection then takes the next call."""
    async with connected(port) as connection:
        await connection.send(asked(name, n=count))
        got = await connection.answer("POST")
        await connection.send(asked(name, told=True))
        after = await connection.answer("POST")

    assert (got.status, got.end) == (200, "whole")
    assert events(got.body).numbers == list(range(count))
    assert (after.status, after.json()["outputs"]["now"]) == (200, 0)


@both
async def test_head_and_get_make_no_stream(port: int, name: str) -> None:
    """Only POST is a call."""
    made = (await told(port, name))["made"]
    head = await ask(port, "HEAD", f"/fn/{name}/")
    got = await ask(port, "GET", f"/fn/{name}/")

    assert (head.status, head.body, head.end) == (405, b"", "whole")
    assert (got.status, got.get("allow")) == (405, "POST")
    assert (await told(port, name))["made"] == made


@both
async def test_a_stream_comes_on_its_own_host(port: int, name: str) -> None:
    """Where its path is /, and the connection is kept."""
    host = {"Host": f"{name}.localhost:{port}", "Content-Type": "application/json"}
    body = json.dumps({"inputs": {"n": 3}}).encode()
    async with connected(port) as connection:
        answers = []
        for _ in range(2):
            await connection.send(request("POST", "/", body, host))
            answers.append(await connection.answer("POST"))

    assert [events(one.body).numbers for one in answers] == [[0, 1, 2]] * 2


@both
async def test_a_client_that_leaves_ends_the_generator(port: int, name: str) -> None:
    """Its `finally` runs, whether it waits for its reader or for its next value."""
    for inputs in ({"size": 1 << 16}, {"ms": 100}):
        async with connected(port) as connection:
            await stream_function.opened(connection, name, n=10**6, **inputs)
            assert (await told(port, name))["now"] == 1
        assert await until(lambda: _is_closed(port, name), ENDS_S)


async def _is_closed(port: int, name: str) -> bool:
    return (await told(port, name))["now"] == 0


@both
async def test_a_reader_that_stops_stops_its_generator_alone(port: int, name: str) -> None:
    """What the kernel takes is made, and no more; another stream is whole meanwhile."""
    made = (await told(port, name))["made"]
    async with connected(port) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(asked(name, n=10_000, size=1 << 20))
        last = -1

        async def stands_still() -> bool:
            nonlocal last
            last, before = (await told(port, name))["made"], last
            return last == before > made

        assert await until(stands_still, ENDS_S)
        got = await call(port, name, n=500)
        assert events(got.body).numbers == list(range(500))
        assert last - made < 32


@pytest.mark.parametrize(("kind", "is_ended"), [("async", False), ("plain", True)])
async def test_a_value_may_take_timeout_s(
    server: ServerProcess, folder: Path, port: int, kind: str, is_ended: bool
) -> None:
    """The stream ends with the problem; a thread that hangs ends the process, and the next call is
    answered by another."""
    name = f"late-{kind}"
    await asyncio.to_thread(stream_function.deploy, server, folder, name, kind, limits=LATE)
    whole = await call(port, name, n=4, ms=300)
    late = await call(port, name, n=4, ms=5000)

    assert events(whole.body).numbers == [0, 1, 2, 3]
    found = events(late.body)
    assert (late.status, found.numbers) == (200, [0])
    assert found.error is not None
    assert found.error["code"] == "execution_timeout"
    if is_ended:
        assert await until(lambda: _why_says(server, name, "exited with code"), ENDS_S)
    assert (await told(port, name))["now"] == 0


async def _why_says(server: ServerProcess, name: str, text: str) -> bool:
    return text in (await asyncio.to_thread(server.fnctl, "why", name)).stdout


async def test_max_s_cuts_streams(server: ServerProcess, folder: Path, port: int) -> None:
    """Read or not; their slots are free again."""
    limits = "concurrency = 2\nmax_s = 3"
    await asyncio.to_thread(stream_function.deploy, server, folder, "brief", "async", limits=limits)
    async with connected(port) as unread, connected(port) as slow:
        await stream_function.opened(unread, "brief", n=10**6, size=1 << 16)
        await stream_function.opened(slow, "brief", n=10**6, ms=50)
        rest = await slow.rest()
        assert await until(lambda: _is_closed(port, "brief"), ENDS_S)

    assert b"data: {" in rest
    assert not rest.endswith(b"0\r\n\r\n")


async def test_streams_take_slots(server: ServerProcess, folder: Path, port: int) -> None:
    """While they fill `concurrency`, calls are held; streams that end make room."""
    limits = "concurrency = 2"
    await asyncio.to_thread(stream_function.deploy, server, folder, "full", "plain", limits=limits)
    async with connected(port) as first, connected(port) as second:
        for connection in (first, second):
            await stream_function.opened(connection, "full", n=10**6, ms=50)
        calls = [asyncio.create_task(call(port, "full", n=2)) for _ in range(4)]
        for _ in range(10):
            assert (await call(port, "async", n=2)).status == 200
        assert not any(one.done() for one in calls)
    answers = await asyncio.gather(*calls)

    assert [events(one.body).numbers for one in answers] == [[0, 1]] * 4


async def test_a_drain_ends_after_drain_s(server: ServerProcess, folder: Path, port: int) -> None:
    """A stream that goes on is cut then, and a WebSocket of a server is told why; `fnctl why` names
    both, and new calls are answered by another replica."""
    limits = "drain_s = 2"
    await asyncio.to_thread(
        stream_function.deploy, server, folder, "drains", "async", limits=limits
    )
    await asyncio.to_thread(faulty_server.deploy, server, folder, "socket", limits=limits)
    async with connected(port) as stream, connected(port) as socket:
        await stream_function.opened(stream, "drains", n=10**6, ms=50)
        await handshake(socket, "/fn/socket/ws")
        await socket.send(masked(1, b"hello"))
        assert await read(socket) == (1, b"hello")
        for name in ("drains", "socket"):
            done = await asyncio.to_thread(server.fnctl, "sleep", name, "--force")
            assert done.returncode == 0, done.stderr
        await socket.send(masked(1, b"still"))
        assert await read(socket) == (1, b"still")
        assert (await call(port, "drains", n=2)).end == "whole"
        rest = await stream.rest()
        code, reason = await read(socket)

    assert not rest.endswith(b"0\r\n\r\n")
    assert rest.count(b"data: {") > 10
    assert (code, reason[:2]) == (8, (1001).to_bytes(2, "big"))
    assert reason[2:] == b"the function's replica was stopped"
    assert await until(lambda: _why_says(server, "drains", "did not drain"), ENDS_S)
    why = (await asyncio.to_thread(server.fnctl, "why", "socket")).stdout
    assert "closed: the replica was stopped while they were in use" in why


@both
async def test_a_killed_function_cuts_its_streams(
    server: ServerProcess, port: int, name: str
) -> None:
    """A client can tell, the next call is answered, and `fnctl why` says it."""
    streams = [asyncio.create_task(call(port, name, n=10**6, ms=20)) for _ in range(4)]

    async def are_open() -> bool:
        return bool((await told(port, name))["now"] == 4)

    assert await until(are_open, ENDS_S)
    killed = [os.pidfd_open(pid) for pid in stream_function.runner_pids(server)]
    for watched in killed:
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    found: list[Got] = await asyncio.gather(*streams)
    # Until it has ended, the kernel takes connections for it: a POST on one may have been run.
    for watched in killed:
        wait_end(watched)

    assert [(one.status, one.end in ("cut", "reset")) for one in found] == [(200, True)] * 4
    assert (await told(port, name))["now"] == 0
    assert await _why_says(server, name, "the server was killed by SIGKILL")


async def test_streams_count_among_the_connections(
    tmp_path: Path, folder: Path, index: PackageIndex
) -> None:
    """With those of another server: beyond `FN_CONNECTIONS` none is accepted until one ends."""
    environment = {"FN_UV_CONFIG": str(index.config(tmp_path)), "FN_CONNECTIONS": "4"}
    with server_process(tmp_path / "data", environment=environment) as server:
        port = urlsplit(server.url).port
        assert port is not None
        await asyncio.to_thread(stream_function.deploy, server, folder, "mine", "async")
        await asyncio.to_thread(faulty_server.deploy, server, folder, "theirs")
        async with AsyncExitStack() as stack:
            ends = [await stack.enter_async_context(connected(port)) for _ in range(4)]
            for end in ends[:2]:
                await stream_function.opened(end, "mine", n=10**6, ms=50)
            for end in ends[2:]:
                await end.send(request("GET", "/fn/theirs/sse?n=100000&ms=50"))
                assert b" 200 " in await end.reader.readuntil(b"\r\n\r\n")
            refused = await call(port, "mine", n=2)
            ends[0].writer.transport.abort()

            async def is_answered() -> bool:
                return (await call(port, "mine", n=2)).status == 200

            assert await until(is_answered, ENDS_S)
        assert (refused.status, refused.code) == (503, "too_many_connections")
