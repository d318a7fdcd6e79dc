"""The data listener of a replica that dials in."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import GATEWAY_NAME
from runtime_image.link.credentials import Credentials
from runtime_image.link.handshake_limits import UNFINISHED_SOURCE_MAX
from runtime_image.link.tcp_state import is_silent
from runtime_image.link.tls_listener import HANDSHAKE_S, UNREAD_MAX, TlsListener
from runtime_image.link.tls_socket import TlsSocket
from tests.support.small_authority import SmallAuthority
from tests.support.tls_front import drop_packets

NAME = "aaaa0001.replica.fngate"
PATIENCE_S = 30.0
FUZZ = random.Random(3)
DIALS = 2 * 64
HOSTILE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x00\x00",
    b"\x16\x03\x01\xff\xff" + bytes(70_000),
    b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + FUZZ.randbytes(16_000),
    b"\x17\x03\x03\x00\x10" + bytes(16),
    b"\x15\x03\x03\x00\x02\x02\x28",
    *(FUZZ.randbytes(size) for size in (1, 5, 100, 100_000)),
]


class Rig:
    """A listener in the test's thread, with a clock that the test sets, and its gateway."""

    def __init__(self, stack: ExitStack) -> None:
        self.now = 0.0
        authority = SmallAuthority()
        self.replica = authority.credentials(NAME)
        self.gateway = authority.credentials(GATEWAY_NAME)
        self.authority = authority
        sock = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.listener = TlsListener(sock, self.replica, lambda: self.now, silent_s=0.0)
        self.listener.setblocking(False)
        self.address = TlsAddress(*sock.getsockname(), NAME)
        self._stack = stack
        stack.callback(self.listener.close)

    def stranger(self, data: bytes = b"") -> socket.socket:
        """Connect, and send bytes."""
        sock = socket.create_connection(self.address[:2], PATIENCE_S)
        self._stack.callback(sock.close)
        with suppress(OSError):
            sock.sendall(data)
        return sock

    def turns(self, until: socket.socket) -> None:
        """Let the listener work until a socket has been answered or closed."""
        while not select.select([until], [], [], 0)[0]:
            select.select([self.listener, until], [], [], PATIENCE_S)
            with pytest.raises(BlockingIOError):
                self.listener.accept()

    def accepted(self) -> tuple[TlsSocket, TlsSocket]:
        """Dial as a gateway, blocking in a thread; return both ends."""
        ends: list[TlsSocket] = []
        dialling = threading.Thread(
            target=lambda: ends.append(self.gateway.dial(self.address, PATIENCE_S))
        )
        dialling.start()
        self.listener.settimeout(PATIENCE_S)
        sock, address = self.listener.accept()
        self.listener.setblocking(False)
        dialling.join()
        for end in (sock, *ends):
            self._stack.callback(end.close)
        assert address == ends[0].getsockname()
        return sock, ends[0]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed; it may have said why."""
    sock.settimeout(PATIENCE_S)
    with suppress(ConnectionResetError):
        while sock.recv(1000):
            pass
    return True


def test_a_gateway_is_accepted_after_its_handshake(rig: Rig) -> None:
    """`accept` returns a connection whose handshake is over, blocking as a new socket."""
    sock, gateway = rig.accepted()

    sock.sendall(b"greeting")

    assert gateway.recv(100) == b"greeting"
    assert sock.gettimeout() is None


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_end_their_connection(rig: Rig, data: bytes) -> None:
    """Whatever is no ClientHello is refused, or waits until its time is over; a gateway is accepted
    beside it."""
    stranger = rig.stranger(data)
    _, gateway = rig.accepted()
    rig.now = HANDSHAKE_S
    rig.listener.expire()

    assert is_closed(stranger)
    assert gateway.fileno() > 0


def test_half_open_connections_have_limits(rig: Rig) -> None:
    """Beyond its places a source is refused at once; the places are free after HANDSHAKE_S."""
    strangers = [rig.stranger(b"\x16") for _ in range(UNFINISHED_SOURCE_MAX + 1)]
    rig.turns(strangers[-1])

    assert is_closed(strangers[-1])
    assert select.select(strangers[:-1], [], [], 0)[0] == []
    rig.now = HANDSHAKE_S
    rig.listener.expire()
    assert all(map(is_closed, strangers))
    rig.accepted()


def test_a_flood_is_refused_and_passes(rig: Rig) -> None:
    """A source whose handshakes fail is refused for a while, before any cryptography."""
    for _ in range(40):
        rig.turns(rig.stranger(b"no handshake"))
    over = rig.stranger(b"no handshake")
    rig.turns(over)
    assert is_closed(over)

    rig.now = 1.0
    rig.accepted()


def test_a_waiting_accept_ends_handshakes(rig: Rig) -> None:
    """A blocking `accept` without a loop has the same limits, and its own timeout."""
    stranger = rig.stranger()
    with pytest.raises(BlockingIOError):
        rig.listener.accept()
    rig.listener.settimeout(0.05)
    clock = iter([0.0, 0.0, 9.0, 9.0])
    rig.listener._clock = lambda: next(clock, 9.0)

    with pytest.raises(TimeoutError):
        rig.listener.accept()

    assert is_closed(stranger)


def test_a_new_certificate_counts_from_the_next_handshake(rig: Rig) -> None:
    """Open links stay when the certificate is replaced."""
    sock, before = rig.accepted()
    rig.replica.replace(rig.authority.issue(NAME))

    _, after = rig.accepted()

    assert before.peer()["serialNumber"] != after.peer()["serialNumber"]
    before.sendall(b"still")
    assert sock.recv(10) == b"still"


def test_an_earlier_server_is_refused(rig: Rig) -> None:
    """After a gateway of a later epoch none of an earlier one is accepted."""
    earlier: Credentials = rig.gateway
    rig.gateway = rig.authority.credentials(GATEWAY_NAME, epoch=2)
    rig.accepted()
    sock = rig.stranger()
    sock.setblocking(False)
    tls = earlier.client(sock, NAME)
    rig.listener.setblocking(False)
    refused = False
    while not refused:
        with suppress(BlockingIOError):
            rig.listener.accept()
        try:
            tls.handshake()
            tls.recv(1)
        except BlockingIOError:
            pass
        except ConnectionError:
            refused = True
    tls.close()
    assert rig.replica.epoch == 2


def test_close_ends_all(rig: Rig) -> None:
    """The listener closes what it has not handed out."""
    stranger = rig.stranger(b"\x16")
    with pytest.raises(BlockingIOError):
        rig.listener.accept()

    rig.listener.close()

    assert is_closed(stranger)


def test_all_gateway_processes_of_a_server_dial_at_once(rig: Rig) -> None:
    """64 processes, of one address, each with two connections, are all accepted at once."""
    ends: list[TlsSocket] = []
    errors: list[OSError] = []

    def dial() -> None:
        try:
            ends.append(rig.gateway.dial(rig.address, PATIENCE_S))
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=dial) for _ in range(DIALS)]
    for thread in threads:
        thread.start()
    accepted: list[TlsSocket] = []
    while len(accepted) < DIALS and not errors:
        select.select([rig.listener], [], [], PATIENCE_S)
        with suppress(BlockingIOError):
            accepted.append(rig.listener.accept()[0])
    for thread in threads:
        thread.join()
    for end in (*ends, *accepted):
        end.close()

    assert errors == []
    assert len(ends) == DIALS


def test_a_peer_that_is_gone_is_broken_off(rig: Rig) -> None:
    """Bytes that nobody acknowledges: at the second look that finds the peer silent."""
    sock, gateway = rig.accepted()
    drop_packets(gateway)
    sock.sendall(b"greeting")
    while not is_silent(sock, 0.0):
        select.select([sock], [], [], 0.01)

    rig.listener.expire()
    assert select.select([sock], [], [], 0)[0] == []
    rig.listener.expire()

    with pytest.raises(ConnectionResetError, match="without close_notify"):
        sock.recv(1)


def test_a_peer_that_only_does_not_read_stays(rig: Rig) -> None:
    """However long it reads nothing; TCP_USER_TIMEOUT would end it."""
    sock, gateway = rig.accepted()
    sock.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += sock.send(bytes(100_000))
    for _ in range(1000):
        rig.listener.expire()

    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
    got = 0
    while got < sent:
        got += len(gateway.recv(100_000))
    sock.settimeout(PATIENCE_S)
    gateway.sendall(b"here")
    assert sock.recv(10) == b"here"


def test_the_kernel_holds_little_of_an_upload(rig: Rig) -> None:
    """The buffer of a connection does not grow with the speed of its reader, as the kernel's own
    rule has it, which ends at 32 MiB on hosts that are tuned."""
    sock, gateway = rig.accepted()
    with rig.listener._sock.dup() as listener:
        bound = listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    sending = threading.Thread(target=gateway.sendall, args=(bytes(30_000_000),))
    sending.start()
    got = 0
    while got < 30_000_000:
        got += len(sock.recv(1_000_000))
    sending.join()

    rmem_max = int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert (bound == 2 * UNREAD_MAX) is (rmem_max >= UNREAD_MAX)
    if bound == 2 * UNREAD_MAX:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == bound
