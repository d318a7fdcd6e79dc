"""A socket over TLS, with real certificates and real TCP connections."""

from __future__ import annotations

import random
import select
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from runtime_image.contract.enrolment import GATEWAY_NAME, SERVER_NAME
from runtime_image.contract.link import Kind
from runtime_image.link.credentials import Credentials
from runtime_image.link.frames import Frame, pack
from runtime_image.link.socket_end import SocketEnd
from runtime_image.link.tls_socket import RECEIVE_SIZE, WRITE_MAX, TlsSocket
from tests.support.small_authority import BOTH, DAY, SmallAuthority

NAME = "aaaa0001.replica.fngate"
PATIENCE_S = 30.0
LARGE = random.Random(1).randbytes(6_000_000)


@pytest.fixture(scope="module")
def authority() -> SmallAuthority:
    return SmallAuthority()


class Pair:
    """Both ends of connections between a gateway and a replica; closed at the end."""

    def __init__(self, authority: SmallAuthority, stack: ExitStack) -> None:
        self.authority = authority
        self.gateway = authority.credentials(GATEWAY_NAME)
        self.replica = authority.credentials(NAME)
        self._stack = stack

    def plain(self) -> tuple[socket.socket, socket.socket]:
        """Return a TCP connection."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
        for sock in (client, server):
            sock.settimeout(PATIENCE_S)
            self._stack.callback(sock.close)
        return client, server

    def raw(self, name: str = NAME) -> tuple[TlsSocket, TlsSocket]:
        """Return both ends before the handshake."""
        client, server = self.plain()
        ends = self.gateway.client(client, name), self.replica.server(server)
        for end in ends:
            self._stack.callback(end.close)
        return ends

    def open(self) -> tuple[TlsSocket, TlsSocket]:
        """Return both ends after the handshake."""
        client, server = self.raw()
        with joined(server.complete):
            client.complete()
        return client, server


@pytest.fixture
def pair(authority: SmallAuthority) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(authority, stack)


class joined:
    """Run a function in a thread beside the block, and raise its error."""

    def __init__(self, function: object, *args: object) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                function(*args)  # type: ignore[operator]
            except BaseException as error:  # noqa: BLE001 - raised in the test's thread
                self._error = error

        self._thread = threading.Thread(target=run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE_S)
        if self._error is not None:
            raise self._error


def failure(pair: tuple[TlsSocket, TlsSocket]) -> tuple[str, str]:
    """Return why the handshake failed at the client, and at the server; "" where it did not."""
    texts = ["", ""]

    def complete(at: int) -> None:
        try:
            pair[at].complete()
            pair[at].recv(1)
        except OSError as error:
            texts[at] = str(error) or type(error).__name__
            pair[at].close()

    with joined(complete, 1):
        complete(0)
    return texts[0], texts[1]


def read_all(sock: socket.socket) -> bytes:
    """Read until close_notify."""
    return b"".join(iter(lambda: sock.recv(100_000), b""))


# Bytes


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, WRITE_MAX, 1_000_003])
def test_bytes_arrive_whole_with_a_clean_end(pair: Pair, size: int) -> None:
    """All bytes are read before the end of the stream, which is 0 bytes."""
    client, server = pair.open()

    def send() -> None:
        client.sendall(LARGE[:size])
        client.shutdown(socket.SHUT_WR)

    with joined(send):
        assert read_all(server) == LARGE[:size]
    assert server.recv(1) == b""


def test_large_bodies_travel_both_ways_at_once(pair: Pair) -> None:
    """Two threads of each end, one that reads and one that writes, do not wait for each other."""
    client, server = pair.open()
    with joined(client.sendall, LARGE), joined(server.sendall, LARGE[::-1]):
        pieces = {client: bytearray(), server: bytearray()}

        def read(sock: TlsSocket) -> None:
            while len(pieces[sock]) < len(LARGE):
                pieces[sock] += sock.recv(70_000)

        with joined(read, client):
            read(server)

    assert pieces[server] == LARGE
    assert pieces[client] == LARGE[::-1]


def test_a_direction_ends_while_the_other_goes_on(pair: Pair) -> None:
    """close_notify ends one direction, though unread bytes of the peer have been received."""
    client, server = pair.open()
    client.sendall(b"early" * 20_000)
    assert server.recv(2) == b"ea"

    server.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    with joined(client.sendall, LARGE):
        got = bytearray(b"ea")
        while len(got) < 100_000 + len(LARGE):
            got += server.recv(300_000)

    assert got == b"early" * 20_000 + LARGE
    with pytest.raises(BrokenPipeError):
        server.send(b"x")


def test_a_stream_without_close_notify_is_broken(pair: Pair) -> None:
    """The end of TCP alone, as of a killed process or an attacker, is no end of the stream."""
    client, server = pair.open()
    client.sendall(b"half an answer")
    client.close()

    assert server.recv(100) == b"half an answer"
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="without close_notify"):
            server.recv(100)


def test_a_reset_is_broken(pair: Pair) -> None:
    """A connection that is closed with unread bytes is reset."""
    client, server = pair.open()
    server.sendall(b"unread")
    client.close()

    with pytest.raises(OSError):  # noqa: PT011 - one of two kinds
        read_all(server)


def test_decrypted_bytes_are_pending(pair: Pair) -> None:
    """A read of a part of what came leaves bytes that no selector shows."""
    client, server = pair.open()
    client.sendall(b"h" * 16 + b"b" * 1000)
    assert server.recv(16) == b"h" * 16

    assert select.select([server], [], [], 0)[0] == []
    assert server.pending() > 0
    server.setblocking(False)
    assert server.recv(5000) == b"b" * 1000
    with pytest.raises(BlockingIOError):
        server.recv(1)
    assert server.pending() == 0


def test_bytes_behind_the_handshake_are_pending(pair: Pair) -> None:
    """What a client sends with its last message of the handshake may come with one read."""
    client, server = pair.raw()
    server.setblocking(False)
    client.setblocking(False)
    while client.handshake():
        server.handshake()
    client.send(b"request")

    while server.handshake():
        pass

    assert server.pending() > 0
    assert server.recv(100) == b"request"


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_end_behind_bytes_is_pending(pair: Pair, is_clean: bool) -> None:
    """An end that came with bytes is told by the next read, which no selector asks for where TCP's
    stream goes on: close_notify, or a record that was changed on its way."""
    near, far = pair.plain()
    client, relayed = pair.plain()
    relay = _Relay(far, client)
    near_end, far_end = pair.gateway.client(near, NAME), pair.replica.server(relayed)
    with relay, joined(far_end.complete):
        near_end.complete()
    near_end.sendall(b"last words")
    records = far.recv(10_000)
    near_end.shutdown(socket.SHUT_WR)
    end = bytearray(far.recv(10_000))
    end[-1] ^= not is_clean
    client.sendall(records + end)
    far_end.setblocking(False)
    assert select.select([far_end], [], [], PATIENCE_S)[0]

    assert far_end.recv(100) == b"last words"
    assert select.select([far_end], [], [], 0)[0] == []
    assert far_end.pending() == 1
    if is_clean:
        assert far_end.recv(100) == b""
    else:
        with pytest.raises(ConnectionResetError):
            far_end.recv(100)
    assert far_end.pending() == 0
    for one in (near_end, far_end):
        one.close()


def test_partial_records_are_not_ready(pair: Pair) -> None:
    """A record of which a part has come is awaited, and reported as nothing."""
    near, far = pair.plain()
    client, relayed = pair.plain()
    relay = _Relay(far, client)
    near_end, far_end = pair.gateway.client(near, NAME), pair.replica.server(relayed)
    with relay, joined(far_end.complete):
        near_end.complete()
    near_end.sendall(b"x" * 10_000)
    record = far.recv(100_000)
    far_end.setblocking(False)

    for cut in (3, 5, 5000):
        client.sendall(record[:cut])
        record = record[cut:]
        assert select.select([far_end], [], [], PATIENCE_S)[0]
        with pytest.raises(BlockingIOError):
            far_end.recv(100_000)
        assert far_end.pending() == 0
    client.sendall(record)
    far_end.settimeout(PATIENCE_S)
    assert len(far_end.recv(100_000)) == 10_000
    for end in (near_end, far_end):
        end.close()


def test_changed_bytes_are_refused(pair: Pair) -> None:
    """A record that was changed on its way ends the connection."""
    near, far = pair.plain()
    client, relayed = pair.plain()
    relay = _Relay(far, client)
    near_end, far_end = pair.gateway.client(near, NAME), pair.replica.server(relayed)
    with relay, joined(far_end.complete):
        near_end.complete()
    near_end.sendall(b"x" * 1000)
    record = bytearray(far.recv(100_000))
    record[500] ^= 1
    client.sendall(record)

    with pytest.raises(ssl.SSLError, match=r"(?i)bad record mac"):
        far_end.recv(100)
    for end in (near_end, far_end):
        end.close()


class _Relay:
    """Relays both directions between two sockets during the block."""

    def __init__(self, one: socket.socket, other: socket.socket) -> None:
        self._ends = {one: other, other: one}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            ready = select.select(list(self._ends), [], [], 0.01)[0]
            for sock in ready:
                self._ends[sock].sendall(sock.recv(65536))
            if not ready and self._is_over.is_set():
                return


# Non-blocking


def test_a_slow_reader_stops_the_writer(pair: Pair) -> None:
    """A write whose records do not fit is repeated with the same bytes; nothing is lost or sent
    twice, and the writer keeps one write at most."""
    client, server = pair.open()
    client.setblocking(False)
    view, sent = memoryview(LARGE), 0
    with suppress(BlockingIOError):
        while True:
            sent += client.send(view[sent:])
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            client.send(view[sent:])
    assert sent < len(LARGE) - WRITE_MAX

    got = bytearray(server.recv(RECEIVE_SIZE))
    while len(got) < len(LARGE):
        with suppress(BlockingIOError):
            while sent < len(LARGE):
                sent += client.send(view[sent:])
        got += server.recv(RECEIVE_SIZE)

    assert got == LARGE


def test_close_notify_waits_for_room(pair: Pair) -> None:
    """The end of a direction whose reader is slow is sent when there is room."""
    client, server = pair.open()
    client.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += client.send(LARGE[:10_000])
    with pytest.raises(BlockingIOError):
        client.shutdown(socket.SHUT_WR)

    got = 0
    while count := len(server.recv(300_000)):
        got += count
        with suppress(BlockingIOError):
            client.shutdown(socket.SHUT_WR)

    assert got in (sent, sent + 10_000)  # the last write had been encrypted


def test_frames_pass_through_a_socket_end(pair: Pair) -> None:
    """`SocketEnd` uses the socket as any other, with large bodies and many small ones."""
    client, server = pair.open()
    sender, receiver = SocketEnd(client), SocketEnd(server)
    bodies = [LARGE[:3_000_000], b"small", *(LARGE[:size] for size in range(0, 5000, 50)), LARGE]
    for id, body in enumerate(bodies):
        sender.send(pack(Kind.REQUEST, id, body))
    frames: list[Frame] = []

    while len(frames) < len(bodies):
        sender.flush()
        frames += receiver.receive() or ()

    assert [bytes(frame.body) for frame in frames] == bodies
    assert [frame.id for frame in frames] == list(range(len(bodies)))


def test_a_timeout_ends_a_wait(pair: Pair) -> None:
    """A blocking call ends after the timeout."""
    client, server = pair.open()
    server.settimeout(0.01)
    with pytest.raises(TimeoutError):
        server.recv(1)
    client.settimeout(0.01)
    with pytest.raises(TimeoutError):
        client.sendall(LARGE * 3)


def test_the_handshake_says_what_it_waits_for(pair: Pair) -> None:
    """A handshake without blocking names the event that it needs next."""
    client, server = pair.raw()
    for end in (client, server):
        end.setblocking(False)

    assert server.handshake() == selectors.EVENT_READ
    assert client.handshake() == selectors.EVENT_READ
    with pytest.raises(BlockingIOError):
        client.sendmsg([b"too early"])


@pytest.mark.parametrize("what", ["flags", "descriptors"])
def test_what_tls_cannot_do_is_refused(pair: Pair, what: str) -> None:
    """Flags and descriptors have no meaning over TLS."""
    client, _ = pair.open()
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"\0" * 4)] if what == "descriptors" else []
    flags = socket.MSG_PEEK if what == "flags" else 0
    with pytest.raises(ValueError, match=what):
        client.sendmsg([b"x"], passed, flags)


# Who the peer is


@pytest.mark.parametrize("case", ["authority", "name", "expired", "usage", "epoch"])
def test_a_client_refuses_other_servers(pair: Pair, authority: SmallAuthority, case: str) -> None:
    """A client accepts a server of the authority, with the name, in time, for servers, and of no
    earlier epoch."""
    other = SmallAuthority() if case == "authority" else authority
    pair.replica = Credentials(authority.pem)
    pair.replica.replace(
        other.issue(
            "bbbb0001.replica.fngate" if case == "name" else NAME,
            life=-timedelta(hours=1) if case == "expired" else DAY,
            usages=(ExtendedKeyUsageOID.CLIENT_AUTH,) if case == "usage" else BOTH,
            epoch=0 if case == "epoch" else 1,
        )
    )
    pair.gateway.epoch = 1

    at_client, at_server = failure(pair.raw())

    assert {
        "authority": "certificate signature failure",
        "name": f"Hostname mismatch, certificate is not valid for '{NAME}'",
        "expired": "certificate has expired",
        "usage": "unsuitable certificate purpose",
        "epoch": "expected a peer of epoch 1 or later, got one of 0",
    }[case] in at_client
    assert at_server


@pytest.mark.parametrize("case", ["none", "authority", "name", "expired", "usage", "epoch"])
def test_a_server_refuses_other_clients(pair: Pair, authority: SmallAuthority, case: str) -> None:
    """A replica accepts gateways and the server of its authority, and nobody else."""
    other = SmallAuthority() if case == "authority" else authority
    pair.gateway = Credentials(authority.pem)
    if case != "none":
        pair.gateway.replace(
            other.issue(
                "bbbb0001.replica.fngate" if case == "name" else GATEWAY_NAME,
                life=-timedelta(hours=1) if case == "expired" else DAY,
                usages=(ExtendedKeyUsageOID.SERVER_AUTH,) if case == "usage" else BOTH,
                epoch=6 if case == "epoch" else 7,
            )
        )
    pair.replica.epoch = 7 if case == "epoch" else 0

    at_client, at_server = failure(pair.raw())

    assert {
        "none": "peer did not return a certificate",
        "authority": "certificate signature failure",
        "name": "expected a peer gateway.fngate or server.fngate, got 'bbbb0001.replica.fngate'",
        "expired": "certificate has expired",
        "usage": "unsuitable certificate purpose",
        "epoch": "expected a peer of epoch 7 or later, got one of 6",
    }[case] in at_server
    assert at_client


def test_the_server_itself_may_connect(pair: Pair, authority: SmallAuthority) -> None:
    """The server fetches the files of trials from a replica."""
    pair.gateway = authority.credentials(SERVER_NAME)
    client, server = pair.open()
    client.sendall(b"FETCH")
    assert server.recv(100) == b"FETCH"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_tls_1_3_is_spoken(pair: Pair, version: ssl.TLSVersion) -> None:
    """A peer that offers TLS 1.2 at most is refused, and sessions are never resumed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = version
    context.load_verify_locations(cadata=pair.authority.pem)
    plain, server = pair.plain()
    accepted = pair.replica.server(server)

    def serve() -> None:
        with suppress(OSError):
            accepted.complete()

    with joined(serve):
        if version is ssl.TLSVersion.TLSv1_2:
            with pytest.raises(ssl.SSLError, match=r"(?i)protocol version"):
                context.wrap_socket(plain, server_hostname=NAME)
        else:
            with context.wrap_socket(plain, server_hostname=NAME) as client:
                assert client.version() == "TLSv1.3"
                assert client.session is None or not client.session.has_ticket
    accepted.close()
