"""Connections to a server: what counts as one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_image.replica.loop import Loop
from runtime_image.server import connecting, listeners
from runtime_image.server.connecting import REFUSED, Connecting, Server


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A loop that the test turns."""
    made = Loop(time.monotonic)
    yield made
    made.close()


class Result:
    """Result of an attempt to connect; stops the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.count = 0
        self.reason = "none yet"

    def __call__(self, sock: socket.socket | None, reason: str) -> None:
        self.count += 1
        self.reason = reason
        if sock is not None:
            sock.close()
        self._loop.stop()


def connect(loop: Loop, server: Server) -> str:
    """Connect; return the reason of a failure, "" for a connection."""
    result = Result(loop)
    if not Connecting(loop, server, result).is_over:
        loop.run()
    assert result.count == 1
    return result.reason


def test_a_server_at_the_port_is_reached(loop: Loop) -> None:
    """Over TCP, with a name for the Host field."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener.getsockname()[1], None, is_shared=False)

        assert connect(loop, server) == ""
        assert server.name == f"127.0.0.1:{server.port}"
    assert connect(loop, server) == REFUSED


def test_a_connection_to_itself_is_refused() -> None:
    """A port without a listener may be chosen as the connection's own."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.connect(("127.0.0.1", port))
    server = Server(port, None, is_shared=False)

    assert server.why_not(sock) == REFUSED
    sock.close()
    assert server.why_not(sock) != ""


def test_in_a_shared_network_the_listener_must_be_ours(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inode at the port must be open in a process below this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener.getsockname()[1], None, is_shared=True)
        stranger = f"another process listens on port {server.port}"
        assert connect(loop, server) == stranger

        own = {os.fstat(listener.fileno()).st_ino: f"/proc/self/fd/{listener.fileno()}"}
        monkeypatch.setattr(listeners, "sockets_of", lambda _: own)
        assert connect(loop, server) == ""
        monkeypatch.setattr(listeners, "sockets_of", lambda _: {})
        assert connect(loop, server) == ""  # still held
        own_path = listeners.leads_to
        monkeypatch.setattr(listeners, "leads_to", lambda *_: False)
        assert connect(loop, server) == stranger
        monkeypatch.setattr(listeners, "leads_to", own_path)
        assert connect(loop, server) == stranger


def test_a_slow_connection_is_waited_for(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop tells when it is established, or refused."""
    monkeypatch.setattr(connecting, "_is_writable", lambda _: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener.getsockname()[1], None, is_shared=False)
        assert connect(loop, server) == ""


def test_a_cancelled_attempt_reports_nothing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is closed and forgotten."""
    monkeypatch.setattr(connecting, "_is_writable", lambda _: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener.getsockname()[1], None, is_shared=False)
        result = Result(loop)
        Connecting(loop, server, result).cancel()
        loop.after(0.01, loop.stop)
        loop.run()

    assert result.count == 0


def test_a_unix_socket_with_a_full_backlog_is_tried_again(loop: Loop, tmp_path: Path) -> None:
    """connect(2) says EAGAIN at once; the owner limits the time."""
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        server = Server(0, path, is_shared=False)
        waiting = []
        while not (begun := server.begin())[1]:
            waiting.append(begun[0])
        begun[0].close()
        result = Result(loop)
        attempt = Connecting(loop, server, result)
        assert not attempt.is_over
        loop.after(0.03, lambda: listener.accept()[0].close())
        loop.run()
        for sock in waiting:
            sock.close()

    assert result.reason == ""
    assert server.name == "localhost"
    assert connect(loop, server) == REFUSED


@pytest.mark.parametrize("kind", ["link", "file", "absent"])
def test_only_a_socket_in_its_own_folder_is_connected_to(
    loop: Loop, tmp_path: Path, kind: str
) -> None:
    """A link could lead to any socket of this machine."""
    target, path = tmp_path / "target.sock", tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(target))
        listener.listen()
        if kind == "link":
            path.symlink_to(target)
        elif kind == "file":
            path.write_text("x")

        assert connect(loop, Server(0, path, is_shared=False)) == REFUSED
