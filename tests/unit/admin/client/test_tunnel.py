from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import asyncssh
import pytest

from admin.client.client import Client
from admin.client.ssh import NoToken
from admin.client.tunnel import open_channel, tunnel
from hosts.errors import Unreachable
from hosts.login import Login, log_in, parse_target
from tests.support.admin_api import AdminApi, Canned
from tests.support.sshd import Sshd, sshd

pytestmark = pytest.mark.slow
BROKE = r"SSH connection to \S+ broke"


def test_many_exchanges_share_one_connection(api: AdminApi, far: Sshd, login: Login) -> None:
    """Each exchange has its own channel over one SSH connection."""
    api.on("GET", "/readyz", Canned({"status": "ok"}))

    with tunnel(login) as opened:
        client = Client(api.url, "k", dial=opened.dial)
        answers = [client.ready() for _ in range(5)]

    assert answers == [{"status": "ok"}] * 5
    assert api.requests[0].headers["Host"] == api.url.removeprefix("http://")
    assert far.log.read_text().count("Accepted publickey") == 1


def test_its_thread_ends_with_the_block(login: Login) -> None:
    """Thread and connection end with the block, even after an error."""
    during: list[str] = []

    def interrupted() -> None:
        with tunnel(login):
            during.extend(thread.name for thread in threading.enumerate())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert "ssh-tunnel" in during
    assert "ssh-tunnel" not in {thread.name for thread in threading.enumerate()}


def test_a_failed_login_leaves_no_thread(far: Sshd, login: Login) -> None:
    """A failed login leaves no thread."""
    with pytest.raises(Unreachable), tunnel(replace(login, identity=far.make_key("stranger"))):
        raise AssertionError("nobody is let in")

    assert "ssh-tunnel" not in {thread.name for thread in threading.enumerate()}


def test_a_closed_remote_port_is_reported(login: Login) -> None:
    """A closed port on the remote machine is reported with its number."""
    nobody = r"nothing listens on 127\.0\.0\.1:9 of"

    with pytest.raises(Unreachable, match=nobody) as error, tunnel(login) as opened:
        Client("http://127.0.0.1:9", dial=opened.dial).ready()

    assert "fnctl serve" in error.value.__notes__[0]


def test_a_server_that_dies_is_not_the_tunnel(api: AdminApi, login: Login) -> None:
    """An exchange that fails while SSH stands is the gateway's failure."""
    api.on("GET", "/readyz", Canned(is_cut=True))

    with pytest.raises(Unreachable, match="does not answer"), tunnel(login) as opened:
        Client(api.url, dial=opened.dial).ready()


def test_sshd_killed_in_the_middle_is_told(api: AdminApi, far: Sshd, login: Login) -> None:
    """Killing sshd fails the exchange at once with the reason, and the tunnel closes."""
    api.on("GET", "/readyz", Canned({"status": "ok"}, before=far.stop))

    with pytest.raises(Unreachable, match=BROKE) as error, tunnel(login) as opened:
        Client(api.url, dial=opened.dial).ready()

    assert "may continue" in error.value.__notes__[0]


def test_a_silent_sshd_is_given_up(
    api: AdminApi, far: Sshd, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen sshd is given up after missed keep-alives, and the pending exchange fails."""
    monkeypatch.setattr("hosts.login.ALIVE_S", 0.1)
    monkeypatch.setattr("admin.client.tunnel.GRACE_S", 0.1)
    api.on("GET", "/readyz", Canned({"status": "ok"}, before=far.freeze))

    with pytest.raises(Unreachable, match=BROKE), tunnel(login) as opened:
        Client(api.url, dial=opened.dial).ready()


def test_leaving_a_silent_sshd_takes_no_answer(
    far: Sshd, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the tunnel does not wait for a frozen sshd: its thread ends beside it."""
    monkeypatch.setattr("admin.client.tunnel.GRACE_S", 0.1)

    before = {*threading.enumerate()}

    with tunnel(login):
        begun = {*threading.enumerate()} - before
        (thread,) = (one for one in begun if one.name == "ssh-tunnel")
        far.freeze()

    thread.join(60.0)  # `close` itself waits for a moment only, too short for a busy machine
    assert not thread.is_alive()


def test_no_new_channel_over_a_broken_connection(api: AdminApi, far: Sshd, login: Login) -> None:
    """A new exchange over a broken connection fails with the reason of the break."""

    def dial_after_the_end() -> None:
        with tunnel(login) as opened:
            far.stop()
            opened.dial("127.0.0.1", 9)

    with pytest.raises(Unreachable, match=BROKE):
        dial_after_the_end()


def test_the_token_comes_from_there(login: Login, tmp_path: Path) -> None:
    """The token is read over the same connection; a missing one is a NoToken error."""
    (tmp_path / "admin.token").write_text("t0ken")

    with tunnel(login) as opened:
        assert opened.token(tmp_path) == "t0ken"
        with pytest.raises(NoToken):
            opened.token(tmp_path / "elsewhere")


T = TypeVar("T")
BUFFERED_MAX = 24 * 1024 * 1024
"""Limit in bytes on what is buffered towards a reader that reads nothing: SSH's window and
sockets."""
END_S = 60.0


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(END_S)
        yield server


@asynccontextmanager
async def joined(
    login: Login, server: socket.socket
) -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection through SSH: the local one and the one that `server`
    accepted."""
    there = await log_in(login)
    try:
        ours = await open_channel(there.connection, *server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.settimeout(END_S)
            theirs.settimeout(END_S)
            yield ours, theirs
    finally:
        await there.close()


def apart(work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """Run `work` in a thread while the loop transfers bytes."""
    return asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def read_all(source: socket.socket) -> bytes:
    parts = []
    while part := source.recv(65536):
        parts.append(part)
    return b"".join(parts)


async def test_bytes_go_both_ways_to_the_end(login: Login) -> None:
    """More bytes than any buffer holds arrive in both directions, followed by the end."""
    data = bytes(range(256)) * 40_000
    with listening() as server:
        async with joined(login, server) as (ours, theirs):

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


async def test_a_reader_that_does_not_read_blocks_the_writer(login: Login) -> None:
    """A reader that reads nothing blocks the writer, so buffers stay bounded."""

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
        async with joined(login, server) as (ours, theirs):
            assert await apart(fill, ours) < BUFFERED_MAX
            assert await apart(fill, theirs) < BUFFERED_MAX


async def test_an_answer_outlives_a_refused_upload(login: Login) -> None:
    """The answer of a server that closes during an upload arrives, and the writer stops."""
    with listening() as server:
        async with joined(login, server) as (ours, theirs):

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

            host_key_refused = apart(refuse)
            assert await apart(upload) == b"no"
            await host_key_refused


async def test_leaving_is_seen_on_the_far_side(login: Login) -> None:
    """Closing the local socket ends the remote connection."""
    with listening() as server:
        async with joined(login, server) as (ours, theirs):
            ours.close()

            assert await apart(theirs.recv, 1) == b""


async def test_a_broken_connection_ends_the_near_side(login: Login) -> None:
    """A broken SSH connection ends the local socket instead of leaving its reader waiting."""
    with listening() as server:
        there = await log_in(login)
        ours = await open_channel(there.connection, *server.getsockname())
        with ours, server.accept()[0]:
            ours.settimeout(END_S)
            reading = apart(ours.recv, 1)

            there.connection.abort()

            assert await reading == b""
        await there.close()


async def test_forbidden_forwarding_is_an_error(tmp_path: Path) -> None:
    """Without AllowTcpForwarding the channel is refused, and no local socket stays open."""
    with sshd(tmp_path / "strict", "AllowTcpForwarding no") as strict:
        login = Login(parse_target(strict.target), strict.identity, strict.known_hosts)
        there = await log_in(login)
        with pytest.raises(asyncssh.ChannelOpenError) as error:
            await open_channel(there.connection, "127.0.0.1", 9)
        await there.close()

    assert error.value.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
