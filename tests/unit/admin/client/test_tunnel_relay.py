from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncssh
import pytest

from admin.client.ssh import Login, log_in, parse_target
from admin.client.tunnel import Near, dial
from tests.support.sshd import sshd

pytestmark = pytest.mark.slow

T = TypeVar("T")

BUFFERED_MAX = 24 * 1024 * 1024
"""Bytes between a writer and a reader who reads nothing: SSH's window, sockets, and no more."""
END_S = 60.0


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(END_S)
        yield server


@asynccontextmanager
async def joined(
    way: Login, server: socket.socket
) -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection through SSH: ours, and the one that `server` accepted."""
    there = await log_in(way)
    try:
        ours = await dial(there.connection, *server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.settimeout(END_S)
            theirs.settimeout(END_S)
            yield ours, theirs
    finally:
        await there.close()


def apart(work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """`work` in a thread, while the loop carries bytes."""
    return asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def read_all(source: socket.socket) -> bytes:
    parts = []
    while part := source.recv(65536):
        parts.append(part)
    return b"".join(parts)


async def test_bytes_go_both_ways_to_the_end(way: Login) -> None:
    """What one side writes the other one reads, more than any buffer holds, then the end."""
    data = bytes(range(256)) * 40_000
    with listening() as server:
        async with joined(way, server) as (ours, theirs):

            def answer() -> None:
                got = bytearray()
                while len(got) < len(data):
                    got += theirs.recv(65536)
                theirs.sendall(got[::-1])
                theirs.close()

            answered = apart(answer)
            await apart(ours.sendall, data)

            assert await apart(read_all, ours) == data[::-1]
            await answered


async def test_whoever_reads_nothing_stops_the_writer(way: Login) -> None:
    """A far side that reads nothing is not buffered for without end."""

    def fill(sink: socket.socket) -> int:
        sink.settimeout(0.5)
        sent, block = 0, b"x" * 65536
        while sent <= BUFFERED_MAX:
            try:
                sent += sink.send(block)
            except TimeoutError:
                break
        return sent

    with listening() as server:
        async with joined(way, server) as (ours, theirs):
            assert await apart(fill, ours) < BUFFERED_MAX
            assert await apart(fill, theirs) < BUFFERED_MAX


async def test_an_answer_outlives_a_refused_upload(way: Login) -> None:
    """A server that answers and closes in the middle of an upload is heard; the writer stops."""
    with listening() as server:
        async with joined(way, server) as (ours, theirs):

            def refuse() -> None:
                theirs.recv(1)
                theirs.sendall(b"no")
                theirs.shutdown(socket.SHUT_WR)
                theirs.close()

            def upload() -> bytes:
                with contextlib.suppress(BrokenPipeError):
                    while True:
                        ours.sendall(b"x" * 65536)
                return read_all(ours)

            refused = apart(refuse)
            assert await apart(upload) == b"no"
            await refused


class Closing:
    """A channel just before its end is said; `asked` once it was written to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.asked.set()
        raise BrokenPipeError("Channel not open for sending")


async def test_an_answer_outlives_a_channel_that_just_ends() -> None:
    """What is written in that moment is dropped; what came before it can still be read."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    near, closing = Near(), Closing()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: near, theirs)
    near.write(b"no")
    near.join(cast(Any, closing))
    with ours:
        ours.sendall(b"x")
        await closing.asked.wait()
        assert not transport.is_closing()
        near.far_ended()

        assert await apart(read_all, ours) == b"no"


async def test_leaving_is_seen_on_the_far_side(way: Login) -> None:
    """A client that closes its socket ends the far connection."""
    with listening() as server:
        async with joined(way, server) as (ours, theirs):
            ours.close()

            assert await apart(theirs.recv, 1) == b""


async def test_a_broken_connection_ends_the_near_side(way: Login) -> None:
    """When SSH breaks, whoever reads reads the end instead of waiting."""
    with listening() as server:
        there = await log_in(way)
        ours = await dial(there.connection, *server.getsockname())
        with ours, server.accept()[0]:
            ours.settimeout(END_S)
            reading = apart(ours.recv, 1)

            there.connection.abort()

            assert await reading == b""
        await there.close()


async def test_forbidden_forwarding_is_an_error(tmp_path: Path) -> None:
    """A server without AllowTcpForwarding opens nothing, and no socket is left open here."""
    with sshd(tmp_path / "strict", "AllowTcpForwarding no") as strict:
        way = Login(parse_target(strict.target), strict.identity, strict.known_hosts)
        there = await log_in(way)
        with pytest.raises(asyncssh.ChannelOpenError) as error:
            await dial(there.connection, "127.0.0.1", 9)
        await there.close()

    assert error.value.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
