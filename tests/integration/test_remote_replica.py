"""Real replica processes in remote mode, through a tunnel and over TLS; the test is the server."""

from __future__ import annotations

import hashlib
import json
import random
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime_image.contract.link import HEADER, Kind, NotStarted
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import pack
from tests.support.blocking import BlockingLink
from tests.support.dial_in_replica import DialInReplica
from tests.support.remote_replica import MODEL_ROW, RemoteReplica
from tests.support.sidecar_process import ask, tiny

pytestmark = pytest.mark.slow
Kinds = type[RemoteReplica]
ORPHAN_S = 0.5
LEASE_S = 3.0  # where a gateway has to connect first, on a busy machine
SIZE = 10 * 2**20
SERVER = """
import hashlib, socket, sys, threading

def answer(sock):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        more = sock.recv(65536)
        if not more:
            return
        data += more
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    what = head.split()[1]
    if what == b"/":
        sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    elif what == b"/upgrade":
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\n\\r\\n" + body)
        while data := sock.recv(65536):
            sock.sendall(data)
        sock.sendall(b"bye")
    elif what == b"/flood":
        block, sent = bytes(65536), 0
        sock.settimeout(1.0)
        try:
            while sent < 64 * 2**20:
                sent += sock.send(block)
        except TimeoutError:
            print("stalled at", sent, flush=True)
        sock.settimeout(60)
        while sent < 64 * 2**20:
            sent += sock.send(block)
    elif what == b"/early":
        sock.sendall(b"no")
        sock.close()
        return
    else:  # the digest of all that comes before the end of the stream, and as much back
        digest, size = hashlib.sha256(body), len(body)
        while data := sock.recv(65536):
            digest.update(data)
            size += len(data)
        sock.sendall(digest.hexdigest().encode() + b"x" * size)
    sock.close()

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(params=[RemoteReplica, DialInReplica], ids=["tunnel", "tls"])
def kind(request: pytest.FixtureRequest) -> Kinds:
    """How the replica reaches the server."""
    made: Kinds = request.param
    return made


@pytest.fixture
def model(kind: Kinds, root: Path) -> Iterator[RemoteReplica]:
    with closing(kind(root)) as made:
        yield made


@pytest.fixture
def web(kind: Kinds, root: Path) -> Iterator[RemoteReplica]:
    """A ready sidecar around SERVER."""
    spec = ServerSpec("web@1", (sys.executable, "-I", "-c", SERVER, "${PORT}"), concurrency=3)
    with closing(kind(root, spec)) as made:
        made.ready()
        yield made


def served(replica: RemoteReplica) -> BlockingLink:
    """A data link over which one request was answered."""
    link = replica.connect()
    link.hello()
    link.request(1, body=MODEL_ROW)
    assert link.answer().kind is Kind.RESPONSE
    return link


def ended(channel: socket.socket) -> bool:
    """Whether a channel ends without an answer; unread bytes make it a reset."""
    try:
        return channel.recv(1) == b""
    except ConnectionResetError:
        return True


def acknowledged(link: BlockingLink) -> None:
    """Send two PINGs, of which the second acknowledges the PONG of the first."""
    for count in range(2):
        link.send(Kind.PING, aux=count)
        while link.next().kind is not Kind.PONG:
            pass


# The control link


def test_a_call_is_served_without_a_descriptor(model: RemoteReplica) -> None:
    """The replica binds a listener that every user may connect to, greets first, and states no
    times of another clock."""
    model.ready()

    served(model)

    assert model.loaded["phases"].get("start", 0) < 60_000
    assert model.loaded["phases"]["bind"] < 60_000
    assert model.runs() == 1


@pytest.mark.parametrize("kind", [RemoteReplica])
def test_a_replica_dials_until_there_is_a_tunnel(model: RemoteReplica) -> None:
    """A replica that starts while its host's link is down, or hangs, tries again. Every user may
    connect to its listener."""
    listener = model.listen()
    model.launch()
    sock, _ = listener.accept()
    sock.close()  # the tunnel's far end is down

    link, hello = model.dialled()
    link.send(Kind.WELCOME)
    model.bind(link)
    loaded = json.loads(link.next(Kind.LOADED).body)

    assert hello["dial"] >= 2
    assert model.data_path.stat().st_mode & 0o777 == 0o666
    assert {"start"} & loaded["phases"].keys() == set()


def test_a_broken_link_is_dialled_again(model: RemoteReplica) -> None:
    """Calls go on while the control link is down; the next HELLO has the whole state."""
    link = model.ready()
    data = served(model)

    link.close()
    data.request(2, body=MODEL_ROW)
    during = data.answer()
    again, hello = model.dialled()
    again.send(Kind.WELCOME)
    again.send(Kind.PING)

    assert during.kind is Kind.RESPONSE
    assert (hello["dial"], hello["bound"], hello["loaded"]["limit"]) == (2, model.bound, 2)
    assert again.next(Kind.PONG)


def test_a_silent_link_is_dialled_again(model: RemoteReplica) -> None:
    """Three missing PINGs are a lost link, though its stream never ends."""
    link = model.ready(ping_ms=100)

    again, hello = model.dialled()
    again.send(Kind.WELCOME, aux=60_000)
    again.send(Kind.PING)

    assert hello["dial"] == 2
    assert again.next(Kind.PONG)
    with pytest.raises(EOFError):
        link.last()


# The lease


def test_a_replica_that_was_stopped_runs_nothing_late(kind: Kinds, root: Path) -> None:
    """Requests that waited in the socket of a stopped process are returned, though PINGs wait
    beside them; the replica exits with 70.

    GOAWAY names the last request that was accepted. Those behind it are refused one by one if the
    replica reads them before it exits; otherwise the end of the link returns them.
    """
    with closing(kind(root, orphan_s=LEASE_S)) as model:
        link = model.ready()
        data = served(model)
        acknowledged(link)

        model.signal(signal.SIGSTOP)
        data.request(2, 3, body=MODEL_ROW)
        for count in range(3):
            link.send(Kind.PING, aux=count)
        stopped_s = time.monotonic()
        while time.monotonic() - stopped_s < LEASE_S:
            select.select([], [], [], LEASE_S)
        model.signal(signal.SIGCONT)
        assert data.next(Kind.GOAWAY).aux < 2
        refusals = []
        with suppress(EOFError, ConnectionResetError):
            while True:
                refusals.append(data.next(Kind.NOT_STARTED))

        assert {frame.id for frame in refusals} <= {2, 3}
        assert {frame.aux for frame in refusals} <= {NotStarted.DRAINING}
        assert model.exit() == 70
        assert model.runs() == 1


def test_an_orphan_ends_with_live_data_links(kind: Kinds, root: Path) -> None:
    """Without a manager for `orphan_s` the replica refuses new requests on a live data link."""
    with closing(kind(root, orphan_s=LEASE_S)) as model:
        model.ready()
        data = served(model)
        model.deafen()

        assert data.next(Kind.GOAWAY)
        assert model.exit() == 70
        assert model.runs() == 1


def test_pings_without_acknowledgement_do_not_prolong_the_lease(kind: Kinds, root: Path) -> None:
    """PINGs that may have lain in a buffer do not keep a replica alive."""
    with closing(kind(root, orphan_s=ORPHAN_S)) as model:
        link = model.ready()
        stop = threading.Event()

        def ping() -> None:
            while not stop.wait(ORPHAN_S / 10):
                try:
                    link.send(Kind.PING, aux=0)
                except OSError:
                    return

        pinging = threading.Thread(target=ping)
        pinging.start()
        try:
            assert model.exit() == 70
        finally:
            stop.set()
            pinging.join()


@pytest.mark.parametrize("kind", [RemoteReplica])
def test_a_replica_without_any_manager_ends(kind: Kinds, root: Path) -> None:
    """A replica that never reaches its manager exits with 70."""
    with closing(kind(root, orphan_s=ORPHAN_S)) as model:
        model.launch()

        assert model.exit() == 70
        assert "no manager for 0.5 s" in model.log.read_text()


def test_a_stopped_sidecar_relays_nothing_late(kind: Kinds, root: Path) -> None:
    """Bytes that waited in a kept channel of a stopped sidecar do not reach the server."""
    with closing(kind(root, tiny(), orphan_s=LEASE_S)) as web:
        link = web.ready()
        acknowledged(link)
        gateway = web.gateway()
        channel = gateway.open(1)
        assert ask(channel) == b"hello"
        acknowledged(link)

        web.signal(signal.SIGSTOP)
        channel.sendall(b"GET /exit HTTP/1.1\r\nHost: x\r\n\r\n")
        stopped_s = time.monotonic()
        while time.monotonic() - stopped_s < LEASE_S:
            select.select([], [], [], LEASE_S)
        web.signal(signal.SIGCONT)

        assert web.exit() == 70  # the request would have made it 1
        assert ended(channel)


# Exchanges


def test_a_small_exchange_is_relayed(web: RemoteReplica) -> None:
    """A request that follows CONNECT at once is answered, in either order of OPEN and CONNECT."""
    gateway = web.gateway()
    first = gateway.open(1)
    second = gateway.channel(2)
    second.sendall(b"GET / HTTP/1.1\r\n\r\n")
    gateway.link.send(Kind.OPEN, 2)

    assert ask(first, to_end=True) == b"ok"
    assert second.recv(100).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("size", [0, 1000, SIZE])
def test_bodies_pass_whole_with_the_end_of_one_direction(web: RemoteReplica, size: int) -> None:
    """The end of the request reaches the server while its answer still comes."""
    gateway = web.gateway()
    channel = gateway.open(1)
    body = random.Random(size).randbytes(size)

    def send() -> None:
        channel.sendall(b"POST /digest HTTP/1.1\r\n\r\n" + body)
        channel.shutdown(socket.SHUT_WR)

    sending = threading.Thread(target=send)
    sending.start()
    got = b"".join(iter(lambda: channel.recv(2**20), b""))
    sending.join()

    assert got[:64].decode() == hashlib.sha256(body).hexdigest()
    assert len(got) == 64 + size


def test_an_upgraded_connection_is_relayed(web: RemoteReplica) -> None:
    """Both directions go on after 101, until one side ends."""
    gateway = web.gateway()
    channel = gateway.open(1)
    reader = channel.makefile("rb")

    channel.sendall(b"GET /upgrade HTTP/1.1\r\n\r\nearly")
    assert reader.readline() == b"HTTP/1.1 101 Switching Protocols\r\n"
    assert reader.read(7) == b"\r\nearly"
    for size in (1, 125, 70_000):
        channel.sendall(b"m" * size)
        assert reader.read(size) == b"m" * size
    channel.shutdown(socket.SHUT_WR)

    assert reader.read() == b"bye"


def test_a_slow_reader_slows_the_server(web: RemoteReplica) -> None:
    """The sidecar holds a bounded part of an answer that is not read; nothing is lost."""
    gateway = web.gateway()
    channel = gateway.open(1)
    channel.sendall(b"GET /flood HTTP/1.1\r\n\r\n")
    while "stalled at" not in web.log.read_text():
        select.select([], [], [], 0.05)
    resident_mib = web.resident_mib()

    size = 0
    while size < 64 * 2**20 and (data := channel.recv(2**20)):
        size += len(data)

    assert size >= 64 * 2**20
    assert resident_mib < 40


def test_an_early_answer_of_a_server_arrives(web: RemoteReplica) -> None:
    """An answer arrives although the server closes before it has read the request."""
    gateway = web.gateway()
    channel = gateway.open(1)
    channel.sendall(b"POST /early HTTP/1.1\r\n\r\n")

    assert b"".join(iter(lambda: channel.recv(100), b"")) == b"no"


def test_a_kept_connection_is_used_again(kind: Kinds, root: Path) -> None:
    """A channel outlives its exchange; the next one uses it under its own id."""
    with closing(kind(root, tiny(concurrency=1))) as web:
        web.ready()
        gateway = web.gateway()
        channel = gateway.open(1)
        assert ask(channel) == b"hello"
        gateway.end(1, is_kept=True)
        gateway.reuse(2, 1)
        assert ask(channel) == b"hello"
        gateway.end(2)

        assert ended(channel)


def test_limits_hold_over_channels(kind: Kinds, root: Path) -> None:
    """An OPEN over the limit is refused on the link, and its channel is closed unserved."""
    with closing(kind(root, tiny(concurrency=1))) as web:
        web.ready()
        gateway = web.gateway()
        first = gateway.open(1)
        assert ask(first) == b"hello"
        opened = gateway.link.next(Kind.OPEN)
        second = gateway.channel(2)
        second.sendall(b"GET /exit HTTP/1.1\r\nHost: x\r\n\r\n")
        gateway.link.send(Kind.OPEN, 2)

        assert (opened.id, opened.aux) == (1, 8000)
        refusal = gateway.link.next(Kind.NOT_STARTED)
        assert ended(second)
        gateway.end(1)

        assert (refusal.id, refusal.aux) == (2, NotStarted.FULL)
        while (offer := gateway.link.next()).kind is not Kind.WINDOW:
            pass
        assert offer.aux == 1


def test_a_lost_link_ends_its_channels(web: RemoteReplica) -> None:
    """With the link of a gateway its exchanges end, and no others."""
    lost, stays = web.gateway(), web.gateway()
    mine, other = lost.open(1), stays.open(1)
    mine.sendall(b"GET /upgrade HTTP/1.1\r\n\r\n")
    assert mine.recv(100)

    lost.link.close()

    assert ended(mine)
    assert ask(other, to_end=True) == b"ok"


def test_a_sidecar_drains(web: RemoteReplica) -> None:
    """DRAIN quiesces gateways on other machines, and lets an exchange end."""
    gateway = web.gateway()
    channel = gateway.open(1)
    channel.sendall(b"GET /upgrade HTTP/1.1\r\n\r\n")
    assert channel.recv(100)
    assert web.process is not None

    web.signal(signal.SIGTERM)

    assert ended(channel)
    assert web.exit() == 0


FUZZ = random.Random(7)
HOSTILE: list[bytes] = [
    b"".join(pack(Kind.CONNECT, 1, b"0" * 32)),
    b"".join(pack(Kind.CONNECT, 1, b"")),
    b"".join(pack(Kind.CONNECT, 1, b"k" * 33)),
    b"".join(pack(Kind.CONNECT, 1, b"k" * 32, meta=b"m")),
    HEADER.pack(0xFFFFFFFF, 1, Kind.CONNECT, 0, 0, 0),
    HEADER.pack(32, 1, Kind.CONNECT, 0, 0xFFFF, 0),
    HEADER.pack(0xFFFFFFFF, 0, Kind.HELLO, 0, 0, 7),
    b"".join(pack(Kind.HELLO, aux=6)),
    b"".join(pack(Kind.OPEN, 1)),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    *(FUZZ.randbytes(size) for size in (1, 15, 16, 17, 47, 48, 49, 1000)),
    *(
        HEADER.pack(
            FUZZ.choice([0, 1, 32, 2**31]),
            FUZZ.getrandbits(32),
            FUZZ.choice([Kind.HELLO, Kind.CONNECT, FUZZ.getrandbits(8)]),
            FUZZ.getrandbits(8),
            FUZZ.choice([0, 1, 0xFFFF]),
            FUZZ.getrandbits(32),
        )
        + FUZZ.randbytes(64)
        for _ in range(300)
    ),
]


def test_hostile_connections_change_nothing(web: RemoteReplica) -> None:
    """Frames that are no proper CONNECT or HELLO reach no server, and an honest gateway is served
    as before."""
    gateway = web.gateway()
    stranger = web.gateway()
    for data in HOSTILE:
        with web.stranger() as sock, suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
    taken = stranger.channel(5, key=stranger.greeting["key"])
    channel = gateway.open(5)

    assert ask(channel, to_end=True) == b"ok"
    taken.settimeout(0.2)
    with pytest.raises(TimeoutError):
        taken.recv(1)  # its OPEN never came, and it is not given the other gateway's connection


def test_a_channel_without_an_exchange_is_closed(web: RemoteReplica) -> None:
    """A CONNECT whose OPEN never comes ends by itself."""
    gateway = web.gateway()

    channel = gateway.channel(9)

    assert ended(channel)
