"""How a replica connects to the server's door, without blocking its loop."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import SERVER_NAME
from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, LinkError
from runtime_image.link.tls_socket import TlsSocket
from runtime_image.replica import tls_dialling
from runtime_image.replica.loop import Loop
from runtime_image.replica.tls_dialling import TlsDialler, certificate_of
from tests.support.small_authority import SmallAuthority

NAME = "aaaa0001.replica.fngate"


class Rig:
    """A dialler, its loop in the test's thread, and a listener."""

    def __init__(self, stack: ExitStack, host: str = "127.0.0.1") -> None:
        self.authority = SmallAuthority()
        self.server = self.authority.credentials(SERVER_NAME)
        self.late_s = 0.0
        self.loop = Loop(lambda: time.monotonic() + self.late_s)
        self.listener = stack.enter_context(socket.create_server((host, 0), backlog=8))
        with socket.create_connection(self.listener.getsockname()) as peer:
            server = TlsAddress("localhost", peer.getpeername()[1])
            self.dialler = TlsDialler(peer, self.authority.credentials(NAME), server)
        self.listener.accept()[0].close()
        self.ends: list[socket.socket | None] = []
        self._stack = stack
        stack.callback(self.loop.close)
        stack.callback(self.dialler.close)

    def accept(self) -> TlsSocket:
        """Accept a connection, and finish its handshake as the server."""
        # A replica's own check of clients refuses a replica: this is the server.
        sock, _ = self.listener.accept()
        end = TlsSocket(sock, self.server._server or pytest.fail("no context"), lambda _: None)
        self._stack.callback(end.close)
        end.complete()
        return end

    def dial(self) -> socket.socket | None:
        """Dial in the loop; return what came of it."""

        def dialled(sock: socket.socket | None) -> None:
            self.ends.append(sock)
            self.loop.post(self.loop.stop)

        self.dialler.begin(self.loop, dialled)
        self.loop.run()
        self.loop._running = True
        end = self.ends[-1]
        if end is not None:
            self._stack.callback(end.close)
        return end


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def test_one_socket_connects_again_and_again(rig: Rig) -> None:
    """Each connection is new, though the socket is the same: the one before is reset."""
    ends = []
    for count in range(3):
        accepting = threading.Thread(target=lambda: ends.append(rig.accept()))
        accepting.start()
        sock = rig.dial()
        accepting.join()
        assert sock is not None
        sock.settimeout(30)
        ends[count].sendall(b"hello")
        assert sock.recv(10) == b"hello"
        if count:
            with pytest.raises(ConnectionResetError):
                ends[count - 1].recv(1)


def test_a_server_that_refuses_is_none(rig: Rig) -> None:
    """Nobody listens: there is no connection, and the next attempt is possible."""
    address = rig.listener.getsockname()
    rig.listener.close()
    assert rig.dial() is None
    assert rig.dial() is None
    rig.listener = socket.create_server(address)
    with rig.listener:
        accepting = threading.Thread(target=rig.accept)
        accepting.start()
        assert rig.dial() is not None
        accepting.join()


@pytest.mark.parametrize("what", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_without_tls_is_given_up(
    rig: Rig, what: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is silent is given up after DIAL_S, one that speaks otherwise at once."""
    monkeypatch.setattr(tls_dialling, "DIAL_S", 0.05 if not what else 60.0)
    strangers: list[socket.socket] = []

    def accept() -> None:
        strangers.append(rig.listener.accept()[0])
        strangers[0].sendall(what)

    accepting = threading.Thread(target=accept)
    accepting.start()
    assert rig.dial() is None
    accepting.join()
    strangers[0].close()


def test_a_server_that_was_moved_is_found_by_its_name() -> None:
    """Its name is resolved again when it has not answered for a time, beside the loop."""
    with ExitStack() as stack:
        rig = Rig(stack, host="127.0.0.2")
        port = rig.listener.getsockname()[1]
        rig.listener.close()
        rig.listener = stack.enter_context(socket.create_server(("127.0.0.1", port)))
        assert rig.dial() is None
        assert rig.dialler._resolving is None

        rig.late_s += tls_dialling.RESOLVE_S
        assert rig.dial() is None
        resolving = rig.dialler._resolving
        assert resolving is not None
        resolving.join()
        accepting = threading.Thread(target=rig.accept)
        accepting.start()
        while rig.dial() is None:
            pass
        accepting.join()

        assert rig.dialler.address == TlsAddress("127.0.0.1", port)
        assert rig.dialler._resolving is resolving


def test_another_server_is_not_accepted(rig: Rig) -> None:
    """Whoever listens there with another authority's certificate is nobody."""
    rig.server = SmallAuthority().credentials(SERVER_NAME)
    failed: list[OSError] = []

    def accept() -> None:
        try:
            rig.accept()
        except OSError as error:
            failed.append(error)

    accepting = threading.Thread(target=accept)
    accepting.start()
    assert rig.dial() is None
    accepting.join()
    assert failed


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b"[" * 100_000, b'{"certificate": 1, "key": ""}', b'{"certificate": ""}'],
)
def test_a_malformed_certificate_is_refused(body: bytes) -> None:
    """CERTIFICATE is checked before it is used."""
    with pytest.raises(LinkError, match="malformed CERTIFICATE"):
        certificate_of(Frame(Kind.CERTIFICATE, 0, 0, 0, b"", body))


def test_a_certificate_is_renewed(rig: Rig) -> None:
    """The next connection shows the new certificate."""
    issued = rig.authority.issue(NAME, epoch=9)
    rig.dialler.renew(Frame(Kind.CERTIFICATE, 0, 0, 0, b"", json.dumps(issued).encode()))
    ends: list[TlsSocket] = []
    accepting = threading.Thread(target=lambda: ends.append(rig.accept()))
    accepting.start()
    assert rig.dial() is not None
    accepting.join()

    assert int(ends[0].peer()["serialNumber"], 16) >> 96 == 9
