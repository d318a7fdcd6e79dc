"""Exchanges with a function's server through a real sidecar: over a real sshd, and over TLS."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from gateway.dispatch.call import Stage
from gateway.upstream import HostLost, UpstreamConnection
from runtime_image.contract.server import ServerSpec
from tests.integration.test_exchanges import Exchange
from tests.support.far_host import Far, any_far_host, endpoint, sockets, turn, until
from tests.support.remote_replica import RemoteReplica
from tests.support.sidecar_process import tiny
from tests.support.sidecars import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

MIB = 2**20
HELD_MAX = 16 * MIB
"""Max bytes between a sender and a receiver that does not read: windows and buffers of the kernel,
of both ends of SSH or TLS and of the sidecar."""
RAW = """
import os, socket, sys, threading, time

left = threading.Event()

def serve(sock):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return
        data += piece
    head, _, rest = data.partition(b"\\r\\n\\r\\n")
    path = head.split()[1]
    if path == b"/echo":
        rest = rest or sock.recv(65536)
        while rest:
            sock.sendall(rest)
            rest = sock.recv(65536)
        sock.sendall(b"end")
    elif path == b"/hold":
        count = len(rest)
        while not os.path.exists("go"):
            time.sleep(0.01)
        while piece := sock.recv(65536):
            count += len(piece)
        sock.sendall(b"%d" % count)
    elif path == b"/pour":
        try:
            while True:
                sock.sendall(b"x" * 65536)
        except OSError:
            left.set()
    elif path == b"/early":
        sock.sendall(b"HTTP/1.1 413 Content Too Large\\r\\nContent-Length: 3\\r\\n\\r\\nbig")
    else:
        if path == b"/left":
            left.wait()
        sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

def run(sock):
    with sock:
        serve(sock)

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=run, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(params=["ssh", "tls"])
async def far(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Far]:
    """A host without replicas."""
    async with any_far_host(request.param, tmp_path / "sshd", {"raw.py": RAW}) as far:
        yield far


def raw(concurrency: int) -> ServerSpec:
    """Return the specification of a server that speaks more than HTTP."""
    command = (sys.executable, "-I", "raw.py", "${PORT}")
    return ServerSpec("web@1", command, start_s=30.0, concurrency=concurrency)


async def serving(far: Far, spec: ServerSpec) -> RemoteReplica:
    """Start a sidecar and publish it."""
    replica = await far.launch(spec)
    far.publish(endpoint(replica, is_server=True, limit=spec.concurrency))
    return replica


async def begun(far: Far, path: str) -> tuple[Proxy, UpstreamConnection]:
    """Begin an exchange with a request head."""
    proxy = Proxy()
    proxy.calls.append(proxy.call())
    far.delivery.submit_exchange(proxy.calls[0])
    connection = await proxy.connection()
    connection.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return proxy, connection


async def received(proxy: Proxy) -> bytes:
    """Return all that the server sends until its end."""
    pieces = []
    while piece := await asyncio.wait_for(proxy.received.get(), 30):
        pieces.append(piece)
    return b"".join(pieces)


async def write(proxy: Proxy, connection: UpstreamConnection, data: bytes) -> int:
    """Write in pieces while there is room; return the number of bytes written."""
    count = 0
    while count < len(data) and proxy.events.count("paused") == proxy.events.count("resumed"):
        connection.write(data[count : count + 65536])
        count += 65536
        await asyncio.sleep(0)
    return min(count, len(data))


async def write_all(proxy: Proxy, connection: UpstreamConnection, data: bytes) -> None:
    """Write everything as there is room, and the end of the stream."""
    sent = 0
    async with asyncio.timeout(30):
        while sent < len(data):
            sent += await write(proxy, connection, data[sent:])
            await turn()
    connection.write_eof()


async def test_exchanges_reach_a_server(far: Far) -> None:
    """New connections, reused ones, and more at once than there are slots."""
    await serving(far, tiny(concurrency=2))

    answers = await asyncio.gather(*[Exchange(far.delivery).result for _ in range(20)])
    last = Exchange(far.delivery)

    assert answers == [b"hello"] * 20
    assert await asyncio.wait_for(last.result, 30) == b"hello"
    assert last.is_reused


async def test_exchanges_survive_the_end_of_their_connection(far: Far) -> None:
    """Requests that are sent again get their answers after the break."""
    await serving(far, tiny(concurrency=2))
    assert await Exchange(far.delivery).result == b"hello"

    await far.break_off()

    assert await asyncio.wait_for(Exchange(far.delivery).result, 60) == b"hello"


async def test_streams_pass_both_ways_to_their_ends(far: Far) -> None:
    """As those of a WebSocket or of an upload that is answered while it lasts; the end of one
    direction leaves the other one open."""
    await serving(far, raw(2))
    proxy, connection = await begun(far, "/echo")
    data = Random(7).randbytes(5 * MIB)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_all(proxy, connection, data))
        answer = await received(proxy)
    far.delivery.end_exchange(proxy.calls[0], kept=False)

    assert len(answer) == len(data) + 3
    assert hashlib.sha256(answer).digest() == hashlib.sha256(data + b"end").digest()


async def test_an_upload_waits_for_its_server(far: Far) -> None:
    """A server that does not read stops its sender, within a limit, and gets all later."""
    replica = await serving(far, raw(2))
    proxy, connection = await begun(far, "/hold")
    data = b"x" * (2 * HELD_MAX)

    sent = await write(proxy, connection, data)
    for _ in range(5):  # others are served meanwhile
        await _exchanged(far)
        sent += await write(proxy, connection, data[sent:])
    assert sent < HELD_MAX

    (replica.model_dir / "go").touch()
    await write_all(proxy, connection, data[sent:])

    assert await received(proxy) == str(len(data)).encode()
    far.delivery.end_exchange(proxy.calls[0], kept=False)


async def test_an_early_answer_arrives_whole(far: Far) -> None:
    """The server answers before it has read the upload, closes, and so resets its connection."""
    await serving(far, raw(2))
    proxy, connection = await begun(far, "/early")
    connection.pause_reading()
    await write(proxy, connection, bytes(2 * HELD_MAX))
    for _ in range(3):  # the server is gone meanwhile
        await _exchanged(far)

    connection.resume_reading()
    answer = b""
    while not answer.endswith(b"\r\n\r\nbig"):
        answer += await asyncio.wait_for(proxy.received.get(), 30)
    far.delivery.end_exchange(proxy.calls[0], kept=False)

    assert answer.startswith(b"HTTP/1.1 413")


async def test_the_death_of_a_replica_is_no_end_of_a_stream(far: Far) -> None:
    """The kernel ends its connections. Over SSH sshd tells that from a broken one, over TLS nobody
    can; the link's end is an error either way."""
    replica = await serving(far, raw(2))
    proxy, _ = await begun(far, "/pour")
    await asyncio.wait_for(proxy.received.get(), 30)

    replica.signal(signal.SIGKILL)

    assert isinstance(await asyncio.wait_for(proxy.lost.get(), 30), ConnectionError | None)
    await until(lambda: not far.delivery._dispatcher.links)
    far.delivery.end_exchange(proxy.calls[0], kept=False)


async def test_a_slow_reader_stops_its_server(far: Far) -> None:
    """What is not read stays with the server; small exchanges go on beside it. It learns that its
    reader has left."""
    await serving(far, raw(2))
    proxy, connection = await begun(far, "/pour")
    await asyncio.wait_for(proxy.received.get(), 30)
    connection.pause_reading()
    while not proxy.received.empty():
        proxy.received.get_nowait()

    for _ in range(20):
        await _exchanged(far)
    assert proxy.received.empty()
    connection.resume_reading()
    count = 0
    while count < HELD_MAX:
        count += len(await asyncio.wait_for(proxy.received.get(), 30))
    far.delivery.end_exchange(proxy.calls[0], kept=False)

    await _exchanged(far, "/left")


async def test_a_client_that_leaves_frees_its_channel(far: Far) -> None:
    """The server's connection ends, its slot is free for the next exchange, and neither the sidecar
    nor this process keeps a socket."""
    replica = await serving(far, raw(1))
    await _exchanged(far)
    assert replica.process is not None
    held = sockets(replica.process.pid), sockets()

    for _ in range(10):
        proxy, _ = await begun(far, "/pour")
        await asyncio.wait_for(proxy.received.get(), 30)
        far.delivery.end_exchange(proxy.calls[0], kept=False)
        waiting = proxy.call()
        far.delivery.submit_exchange(waiting)
        far.delivery.cancel(waiting)

    await _exchanged(far)
    assert replica.process is not None
    pid = replica.process.pid
    await until(lambda: (sockets(pid), sockets()) <= held)


async def test_a_truncated_answer_is_an_error(far: Far) -> None:
    """The end of the connection within an answer is an error, not the end of the stream."""
    await serving(far, raw(2))
    proxy, _ = await begun(far, "/pour")
    await asyncio.wait_for(proxy.received.get(), 30)

    await far.break_off()

    assert isinstance(await asyncio.wait_for(proxy.lost.get(), 30), HostLost)
    assert "eof" not in proxy.events
    assert proxy.calls[0].stage is Stage.STARTED
    far.delivery.end_exchange(proxy.calls[0], kept=False)


async def _exchanged(far: Far, path: str = "/") -> None:
    """Make a small exchange."""
    proxy, _ = await begun(far, path)
    assert (await received(proxy)).startswith(b"HTTP/1.1 200 OK")
    far.delivery.end_exchange(proxy.calls[0], kept=False)
