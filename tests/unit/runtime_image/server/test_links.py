"""The sidecar's data plane over real sockets, with the server played by a listener."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime_image.contract.link import SOCKET_NOTICE, VERSION, Kind, NotStarted
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import pack
from runtime_image.replica.loop import Loop
from runtime_image.server import links, passing
from runtime_image.server.connecting import Server
from runtime_image.server.links import Links
from tests.support.blocking import BlockingLink, in_loop, turning
from tests.support.sidecar_process import Gateway

PATIENCE_S = 30.0


class Stage:
    """Links around a listener that accepts what the test lets it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.sock"
        self.data = socket.socket(socket.AF_UNIX)
        self.data.bind(str(self.path))
        self.data.listen()
        self.upstream = socket.create_server(("127.0.0.1", 0))
        self.loop = Loop(time.monotonic)
        self.calls: list[str] = []
        self.stopped = threading.Event()
        server = Server(self.upstream.getsockname()[1], None, is_shared=False)
        self.links = Links(
            self.loop,
            self.data,
            server,
            ServerSpec("web@1", ("x",), concurrency=3),
            first_open=lambda: self.calls.append("first"),
            not_idle=lambda ms: self.calls.append(f"not idle {ms}"),
            stop=self.stopped.set,
        )
        self.loop.turn_end = self.links.turn_end
        self.gateways: list[Gateway] = []

    def gateway(self) -> Gateway:
        """Connect a gateway."""
        self.gateways.append(Gateway(self.path))
        return self.gateways[-1]

    def greet_with(self, *descriptors: int, version: int = VERSION) -> BlockingLink:
        """Connect and send HELLO with these descriptors."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        socket.send_fds(sock, [b"".join(pack(Kind.HELLO, aux=version))], list(descriptors))
        return BlockingLink(sock)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Links whose loop turns in a thread."""
    made = Stage(tmp_path)
    with turning(made.loop):
        yield made
        in_loop(made.loop, made.links.close)
    for gateway in made.gateways:
        gateway.close_all()
    made.upstream.close()


def ends(link: BlockingLink) -> bool:
    """Whether the sidecar ends this link."""
    try:
        link.last()
    except (EOFError, ConnectionResetError):
        return True
    finally:
        link.close()
    return False


def test_a_link_needs_a_side_channel(stage: Stage, tmp_path: Path) -> None:
    """A socket that keeps messages apart, with the right version, before any other frame."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with (tmp_path / "file").open("w") as file:
        assert ends(stage.greet_with())
        assert ends(stage.greet_with(file.fileno()))
        assert ends(stage.greet_with(stream[0].fileno()))
        assert ends(stage.greet_with(pair[0].fileno(), version=VERSION - 1))
    for sock in (*pair, *stream):
        sock.close()
    bare = socket.socket(socket.AF_UNIX)
    bare.connect(str(stage.path))
    early = BlockingLink(bare)
    early.send(Kind.OPEN, 1)
    assert ends(early)


@pytest.mark.parametrize(
    "send",
    [
        lambda gateway: gateway.link.send(Kind.OPEN, 0),
        lambda gateway: gateway.link.send(Kind.QUIESCED),
        lambda gateway: gateway.link.send(Kind.REQUEST, 1),
        lambda gateway: gateway.link.send(Kind.HELLO, aux=VERSION),
    ],
)
def test_a_gateway_that_breaks_the_protocol_is_ended(
    stage: Stage, send: Callable[[Gateway], None]
) -> None:
    """The other links go on."""
    other = stage.gateway()
    gateway = stage.gateway()

    send(gateway)

    assert ends(gateway.link)
    other.open(1)


def test_a_refused_connection_is_answered(stage: Stage) -> None:
    """The gateway asks again elsewhere or later."""
    stage.upstream.close()
    gateway = stage.gateway()

    gateway.link.send(Kind.OPEN, 1)

    assert gateway.link.next(Kind.NOT_STARTED).aux == NotStarted.REFUSED
    assert stage.calls == ["first"]


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ETOOMANYREFS])
def test_a_side_channel_without_room_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Connections are passed later, in order."""
    errors = [error, error]
    original = passing._pass

    def crowded(side: socket.socket, id: int, sock: socket.socket) -> int:
        return errors.pop() if errors else original(side, id, sock)

    monkeypatch.setattr(passing, "_pass", crowded)
    gateway = stage.gateway()
    gateway.link.send(Kind.OPEN, 1)
    gateway.link.send(Kind.OPEN, 2)

    gateway.take(1)
    gateway.take(2)


def test_a_connection_that_was_given_up_is_not_passed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """END before the side channel had room."""
    has_room = threading.Event()
    original = passing._pass

    def crowded(side: socket.socket, id: int, sock: socket.socket) -> int:
        return original(side, id, sock) if has_room.is_set() else errno.ETOOMANYREFS

    monkeypatch.setattr(passing, "_pass", crowded)
    gateway = stage.gateway()
    gateway.link.send(Kind.OPEN, 1)
    gateway.end(1)
    gateway.link.send(Kind.OPEN, 2)
    stage.gateway()  # greeted after these frames were read, or about to
    has_room.set()

    assert SOCKET_NOTICE.unpack(gateway.side.recv(16)) == (2,)


def test_a_gateway_without_its_side_channel_is_ended(stage: Stage) -> None:
    """Nothing can be passed to it."""
    gateway = stage.gateway()
    gateway.side.close()

    gateway.link.send(Kind.OPEN, 1)

    assert ends(gateway.link)


def test_a_drain_without_gateways_stops(stage: Stage) -> None:
    """At once."""
    in_loop(stage.loop, lambda: stage.links.drain(0))

    assert stage.stopped.wait(PATIENCE_S)


def test_more_gateways_than_allowed_are_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of links is the limit of the rotation."""
    monkeypatch.setattr(links, "LINKS_MAX", 1)
    stage.gateway()
    late = socket.socket(socket.AF_UNIX)
    late.connect(str(stage.path))

    assert ends(BlockingLink(late))
