"""Tests of sockets on both machines whose connections cross an SSH connection."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hosts import listening
from hosts.connection import HostConnection
from hosts.errors import ConnectionLost
from tests.support.operator import until
from tests.support.sshd import Sshd
from tests.unit.hosts.conftest import WAIT_S, FarServer, settled

pytestmark = pytest.mark.slow
MIB = 2**20
BOUND = 8 * MIB
FLOOD = 2000
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Accepts:
    """Takes what a listener accepts; `next` has the sockets in order."""

    def __init__(self) -> None:
        self.next: asyncio.Queue[socket.socket] = asyncio.Queue()

    def __call__(self, sock: socket.socket) -> None:
        self.next.put_nowait(sock)

    def close(self) -> None:
        while not self.next.empty():
            self.next.get_nowait().close()

    async def one(self) -> Streams:
        async with asyncio.timeout(WAIT_S):
            return await asyncio.open_unix_connection(sock=await self.next.get())


@pytest.fixture
async def accepts() -> AsyncIterator[Accepts]:
    taken = Accepts()
    yield taken
    taken.close()


@pytest.fixture
async def dial(tmp_path: Path) -> AsyncIterator[Callable[[], asyncio.Future[Streams]]]:
    """Return a function that connects to ctl.sock as a program of the other machine does."""
    opened: list[Streams] = []

    async def dialled() -> Streams:
        opened.append(await asyncio.open_unix_connection(tmp_path / "ctl.sock"))
        return opened[-1]

    yield lambda: asyncio.ensure_future(dialled())
    for _, writer in opened:
        writer.transport.abort()
    await asyncio.sleep(0)


def mode(path: Path) -> int:
    """Return a file's permissions, 0 if there is none."""
    return stat.S_IMODE(path.lstat().st_mode) if path.exists() else 0


async def whole(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read(-1)


async def test_connections_arrive_as_sockets(
    connection: HostConnection, accepts: Accepts, dial: Callable[[], asyncio.Future[Streams]]
) -> None:
    """A stale socket is replaced, its mode is as asked, and half-closes cross both ways."""
    path = Path(str(connection.login.identity)).parent.parent / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    await connection.listen(str(path), accepts, mode=0o622)
    far_reader, far_writer = await dial()
    reader, writer = await accepts.one()
    far_writer.write(b"question")
    far_writer.write_eof()
    assert await whole(reader) == b"question"
    writer.write(b"answer")
    writer.close()

    assert await whole(far_reader) == b"answer"
    assert mode(path) == 0o622


async def test_another_file_is_not_replaced(
    connection: HostConnection, accepts: Accepts, tmp_path: Path
) -> None:
    """Only a socket is removed; the error says what is in the way."""
    (tmp_path / "ctl.sock").write_text("mine")

    with pytest.raises(OSError, match="expected a socket or nothing, got another file"):
        await connection.listen(str(tmp_path / "ctl.sock"), accepts)
    with pytest.raises(OSError, match="its folder is missing or closed"):
        await connection.listen(str(tmp_path / "absent" / "ctl.sock"), accepts)

    assert (tmp_path / "ctl.sock").read_text() == "mine"


async def test_listeners_and_forwards_survive_a_break(
    connection: HostConnection,
    accepts: Accepts,
    dial: Callable[[], asyncio.Future[Streams]],
    server: FarServer,
    far: Sshd,
    tmp_path: Path,
) -> None:
    """Their connections end with the SSH connection; after the next login both serve again."""
    await connection.listen(str(tmp_path / "ctl.sock"), accepts)
    local = tmp_path / "local.sock"
    await connection.forward(local, server.path)
    near_reader, near_writer = await asyncio.open_unix_connection(local)
    await server.accept()
    await dial()
    reader, writer = await accepts.one()

    far.stop()
    assert await whole(reader) == b""
    assert await whole(near_reader) == b""
    refused, refusing = await asyncio.open_unix_connection(local)
    assert await whole(refused) == b""
    with pytest.raises(ConnectionLost):
        await connection.listen(str(tmp_path / "other.sock"), accepts)
    far.start("Subsystem sftp internal-sftp")
    await connection.wait_up(WAIT_S)
    await until(
        lambda: (
            len(connection._listeners)
            == sum(
                one.generation == connection.generation for one in connection._listeners.values()
            )
        )
    )

    _, far_writer = await dial()
    far_writer.write(b"again")
    again, again_writer = await accepts.one()
    assert await again.readexactly(5) == b"again"
    _, forwarded = await asyncio.open_unix_connection(local)
    forwarded.write(b"too")
    peer = await server.accept()
    await until(lambda: peer.received == b"too")
    assert connection.generation == 2
    assert mode(local) == 0o600
    for one in (writer, near_writer, refusing, again_writer, forwarded):
        one.transport.abort()


async def test_a_closed_socket_ends_its_connection(
    connection: HostConnection, tmp_path: Path, dial: Callable[[], asyncio.Future[Streams]]
) -> None:
    """A program that keeps its end open and silent holds nothing once its connection is closed."""
    listener = await connection.listen(str(tmp_path / "ctl.sock"), socket.socket.close)

    dialled = [await dial() for _ in range(20)]
    for reader, _ in dialled:
        assert await whole(reader) == b""

    await until(lambda: listener.open_connections == 0)


async def test_a_flood_of_connections_has_a_limit(
    connection: HostConnection,
    tmp_path: Path,
    accepts: Accepts,
    dial: Callable[[], asyncio.Future[Streams]],
) -> None:
    """More connections than the limit are refused; then the socket serves as before."""
    path = str(tmp_path / "ctl.sock")
    listener = await connection.listen(path, accepts)
    flood = [socket.socket(socket.AF_UNIX) for _ in range(FLOOD)]
    try:
        await asyncio.to_thread(lambda: [one.connect(path) for one in flood])
        await until(lambda: listener.open_connections == listening.CONNECTIONS_MAX)
        await connection.run("true", timeout_s=WAIT_S)

        assert listener.open_connections == listening.CONNECTIONS_MAX
        assert accepts.next.qsize() == listening.CONNECTIONS_MAX
    finally:
        for one in flood:
            one.close()

    def all_closed() -> bool:
        # The last of the flood may wait in sshd's backlog: it arrives after its own end.
        accepts.close()
        return listener.open_connections == 0

    await until(all_closed)
    far_writer = (await dial())[1]
    far_writer.write(b"next")
    far_writer.write_eof()
    arrived = b""
    while not arrived:
        reader, writer = await accepts.one()
        arrived = await whole(reader)
        writer.transport.abort()
    assert arrived == b"next"


async def test_a_flooded_listener_is_closed_for_a_while(
    connection: HostConnection,
    tmp_path: Path,
    accepts: Accepts,
    dial: Callable[[], asyncio.Future[Streams]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its socket is gone, so that a flood costs nothing here; connections that stand stay, and it
    serves again after the pause."""
    monkeypatch.setattr("hosts.connection.PAUSE_S", 0.5)
    path = tmp_path / "ctl.sock"
    listener = await connection.listen(str(path), accepts)
    _, far_writer = await dial()
    reader, writer = await accepts.one()
    with monkeypatch.context() as patch:
        patch.setattr("hosts.listening.RATE_S", 0.0)
        listener._credit = 2.0
        for _ in range(20):
            with suppress(OSError):
                await dial()
        await until(lambda: not path.exists())

    assert accepts.next.qsize() < 10
    far_writer.write(b"question")
    assert await reader.readexactly(8) == b"question"
    await until(path.exists)
    accepts.close()
    await until(lambda: mode(path) == 0o666)
    await dial()
    _, other = await accepts.one()
    for one in (writer, other):
        one.transport.abort()


async def test_no_descriptors_left_refuses_one_connection(
    connection: HostConnection,
    tmp_path: Path,
    accepts: Accepts,
    dial: Callable[[], asyncio.Future[Streams]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection for which this process has no descriptor is closed, and nothing else."""
    await connection.listen(str(tmp_path / "ctl.sock"), accepts)

    def full() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("hosts.splice.socket.socketpair", full)
        reader, _ = await dial()
        assert await whole(reader) == b""
    _, far_writer = await dial()
    far_writer.write(b"next")
    reader, writer = await accepts.one()

    assert await reader.readexactly(4) == b"next"
    writer.transport.abort()


async def test_a_program_that_never_reads_stops_the_writer(
    connection: HostConnection,
    tmp_path: Path,
    accepts: Accepts,
    dial: Callable[[], asyncio.Future[Streams]],
) -> None:
    """What is written to a socket waits in it, not in this process's memory."""
    await connection.listen(str(tmp_path / "ctl.sock"), accepts)
    far_reader, far_writer = await dial()
    far_writer.transport.pause_reading()  # type: ignore[attr-defined]
    _, writer = await accepts.one()
    writer.write(bytes(2 * BOUND))
    last = await settled(connection, writer.transport.get_write_buffer_size)

    assert 2 * BOUND - last < BOUND
    far_writer.transport.resume_reading()  # type: ignore[attr-defined]
    writer.close()
    assert len(await whole(far_reader)) == 2 * BOUND


async def test_a_forward_needs_a_path_of_its_own(
    connection: HostConnection, server: FarServer, tmp_path: Path
) -> None:
    """Another file stays, one path is forwarded once, and a close removes the socket."""
    (tmp_path / "local.sock").write_text("mine")

    with pytest.raises(FileExistsError, match="expected a socket or nothing"):
        await connection.forward(tmp_path / "local.sock", server.path)
    await connection.forward(tmp_path / "other.sock", server.path)
    with pytest.raises(FileExistsError, match="which is forwarded"):
        await connection.forward(tmp_path / "other.sock", server.path)
    await connection.close()

    assert (tmp_path / "local.sock").read_text() == "mine"
    assert mode(tmp_path / "other.sock") == 0


async def test_failures_of_a_forward_are_logged_once(
    connection: HostConnection, server: FarServer, far: Sshd, tmp_path: Path
) -> None:
    """A client that tries for ever fills no log: one line for an unserved socket, none while the
    SSH connection is down."""
    local = tmp_path / "local.sock"
    await connection.forward(local, str(tmp_path / "absent.sock"))

    async def fail() -> None:
        reader, writer = await asyncio.open_unix_connection(local)
        assert await whole(reader) == b""
        writer.close()

    with capture_logs() as logged:
        for _ in range(3):
            await fail()
        far.stop()
        await until(lambda: not connection.is_up)
        await fail()

    lines = [line["event"] for line in logged]
    assert lines.count("a forwarded connection failed") == 1
    assert lines.count("no SSH connection") <= 2
