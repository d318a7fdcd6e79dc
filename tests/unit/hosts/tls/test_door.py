"""Tests of the door of links over TLS: who is let in, what a connection is for, its end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from structlog.testing import capture_logs

from hosts.tls import listener as listening
from hosts.tls import peers
from hosts.tls.authority import LIFE_S, SKEW_S, Authority, Contexts, Issued
from hosts.tls.door import LinkDoor
from hosts.tls.limits import SOURCE_BURST, SOURCE_UNFINISHED_MAX, Refusal
from registry.errors import BadRequest
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import (
    GATEWAY_NAME,
    SERVER_NAME,
    epoch_of,
    replica_name,
)
from runtime_image.contract.link import HEADER, Kind
from tests.support.far_host import until
from tests.support.link_door import SILENCE_S, Peer, Scene, blocking, context_of

HELLO = b'{"hello": 1}'


async def linked(scene: Scene, one: Any, peer: Peer) -> socket.socket:
    """Send HELLO; return the manager's end of the control link, after the HELLO."""
    loop = asyncio.get_running_loop()
    peer.send(Kind.HELLO, HELLO)
    sock: socket.socket = await one.links.get()
    received = b""
    while not received.endswith(HELLO):
        received += await loop.sock_recv(sock, 1024)
    assert received[HEADER.size :] == HELLO
    return sock


async def counted(scene: Scene, reason: Refusal, count: int = 1) -> None:
    """Wait until the door has refused that many for a reason."""
    await until(lambda: scene.door.refusals()[reason] == count)


async def test_a_control_link_is_passed_on(scene: Scene) -> None:
    """HELLO and all frames after it reach the manager, and its frames the replica; what the
    manager wrote before it closed arrives, and then the end."""
    one, loop = scene.admit(), asyncio.get_running_loop()
    with await blocking(scene.replica) as peer:
        sock = await linked(scene, one, peer)
        big = bytes(range(256)) * 4096
        sending = asyncio.create_task(blocking(lambda: peer.sock.sendall(big)))
        received = bytearray()
        while len(received) < len(big):
            received += await loop.sock_recv(sock, 65_536)
        assert received == big
        await sending

        closing = asyncio.create_task(blocking(lambda: [peer.frame(), peer.frame()]))
        with sock:
            await loop.sock_sendall(sock, HEADER.pack(3, 0, Kind.BIND, 0, 0, 0) + b"bye")
        last, end = await closing
        assert last is not None
        assert (last.kind, bytes(last.body), end) == (Kind.BIND, b"bye", None)


async def test_the_end_of_a_replica_reaches_the_manager(scene: Scene) -> None:
    """With close_notify, or killed: the manager's socket ends."""
    one, loop = scene.admit(), asyncio.get_running_loop()
    for leave in (lambda peer: peer.sock.unwrap(), lambda peer: None):
        with await blocking(scene.replica) as peer:
            sock = await linked(scene, one, peer)
            ending = asyncio.create_task(blocking(lambda one=peer: leave(one)))  # noqa: B023
            await asyncio.wait([ending])
        with sock:
            assert await loop.sock_recv(sock, 1024) == b""


async def test_a_replica_that_has_left_already_reaches_the_manager(scene: Scene) -> None:
    """A connection that ends in the same moment as it is joined ends for the manager, too."""
    one, loop = scene.admit(), asyncio.get_running_loop()

    def leave() -> None:
        with scene.replica() as peer:
            peer.send(Kind.HELLO, HELLO)
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for _ in range(20):
        await blocking(leave)
    while not one.links.empty():
        with one.links.get_nowait() as sock:
            async with asyncio.timeout(SILENCE_S):
                while await loop.sock_recv(sock, 1024):
                    pass


async def test_the_newest_control_links_win(scene: Scene) -> None:
    """Of more than two, the oldest is closed: its replica has dialled anew after a break."""
    one, loop = scene.admit(), asyncio.get_running_loop()
    replicas = [await blocking(scene.replica) for _ in range(3)]
    socks = [await linked(scene, one, peer) for peer in replicas]
    assert await loop.sock_recv(socks[0], 1) == b""
    assert await blocking(replicas[0].frame) is None
    for sock, peer in zip(socks[1:], replicas[1:], strict=True):
        await loop.sock_sendall(sock, HEADER.pack(0, 0, Kind.PING, 0, 0, 0))
        frame = await blocking(peer.frame)
        assert frame is not None
        assert frame.kind is Kind.PING
    for end in (*socks, *(peer.sock for peer in replicas)):
        end.close()


async def test_a_forgotten_replica_is_cut(scene: Scene) -> None:
    """Its open links end at once, and its certificate opens no other."""
    one, loop = scene.admit(), asyncio.get_running_loop()
    with await blocking(scene.replica) as peer, await linked(scene, one, peer) as sock:
        scene.door.forget("r1")
        assert await loop.sock_recv(sock, 1) == b""
        assert await blocking(peer.frame) is None
    await ends(scene, scene.replica, Kind.HELLO)
    await counted(scene, Refusal.CERTIFICATE)


async def ends(scene: Scene, connect: Callable[[], Peer], kind: Kind) -> None:
    """Check that the door ends a connection with this first frame, with no answer."""

    def peer() -> None:
        with suppress(ConnectionError), connect() as made:
            with suppress(ConnectionError):
                made.send(kind, {})
            assert made.frame() is None

    await blocking(peer)


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.FETCH])
@pytest.mark.parametrize("name", ["", GATEWAY_NAME, SERVER_NAME, replica_name("r2")])
async def test_only_replicas_get_in(scene: Scene, kind: Kind, name: str) -> None:
    """Whoever has no certificate, or one that is not of an admitted replica, is cut off."""
    one = scene.admit()
    issued = scene.authority.issue(name) if name else None
    await ends(scene, lambda: scene.peer(issued), kind)
    await counted(scene, Refusal.CERTIFICATE)
    assert one.links.empty()


def of_other_authority(scene: Scene, folder: Path) -> Issued:
    return Authority.open(folder / "other", 1, scene.wall).issue(replica_name("r1"))


def of_the_past(scene: Scene, folder: Path) -> Issued:
    wall = lambda: scene.wall() - LIFE_S - 1  # noqa: E731
    return Authority.open(folder / "link", 1, wall).issue(replica_name("r1"))


def of_the_future(scene: Scene, folder: Path) -> Issued:
    wall = lambda: scene.wall() + SKEW_S + 60  # noqa: E731
    return Authority.open(folder / "link", 1, wall).issue(replica_name("r1"))


def of_a_replica(scene: Scene, folder: Path) -> Issued:
    """A certificate that a replica has signed with its own."""
    own = scene.authority.issue(replica_name("r2"))
    (folder / "false").mkdir(mode=0o700)
    (folder / "false" / "authority.pem").write_text(own.key + own.certificate)
    return Authority.open(folder / "false", 1, scene.wall).issue(replica_name("r1"))


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (of_other_authority, "unable to get local issuer certificate"),
        (of_the_past, "certificate has expired"),
        (of_the_future, "certificate is not yet valid"),
        (of_a_replica, "unable to get local issuer certificate"),
    ],
)
async def test_only_our_certificates_get_in(
    scene: Scene, tmp_path: Path, forge: Callable[[Scene, Path], Issued], reason: str
) -> None:
    """A certificate of another authority, of another time, or signed by a replica ends the
    handshake; the log says which it was."""
    one = scene.admit()
    forged = forge(scene, tmp_path)
    with capture_logs() as lines:
        await ends(scene, lambda: scene.peer(forged), Kind.HELLO)
        await counted(scene, Refusal.HANDSHAKE)
    assert [line["why"] for line in lines] == [f"its certificate is refused: {reason}"]
    assert one.links.empty()


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_1"])
async def test_only_the_newest_tls_is_spoken(scene: Scene, version: str) -> None:
    """A peer of an older version is refused."""

    def peer() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=scene.authority.pem)
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion[version]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Peer(scene.door.address.port, context)

    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        await blocking(peer)
    await counted(scene, Refusal.HANDSHAKE)


@pytest.mark.parametrize("group", ["X25519", "secp384r1", "secp521r1"])
async def test_no_peer_chooses_a_costly_group(scene: Scene, group: str) -> None:
    """Key exchanges are of P-256 alone."""

    def peer() -> None:
        context = context_of(scene.authority.pem, None)
        context.set_ecdh_curve(group)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Peer(scene.door.address.port, context)

    await blocking(peer)
    await counted(scene, Refusal.HANDSHAKE)


@pytest.mark.parametrize(
    "first",
    [
        HEADER.pack(0, 0, Kind.PING, 0, 0, 0),
        HEADER.pack(0, 0, Kind.ENROLLED, 0, 0, 0),
        HEADER.pack(0, 0, 250, 32, 0, 0),
        HEADER.pack(32 * 1024 + 1, 0, Kind.ENROL, 0, 0, 0),
        HEADER.pack(2**32 - 1, 0, Kind.HELLO, 0, 0, 0),
        HEADER.pack(4097, 0, Kind.FETCH, 0, 0, 0),
        HEADER.pack(2, 0, Kind.ENROL, 0, 1, 0),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_other_first_frames_end_the_connection(scene: Scene, first: bytes) -> None:
    """A kind with which no replica begins, and a frame that is too large, is cut off before its
    body."""
    scene.admit()

    def peer() -> None:
        with scene.replica() as made:
            made.sock.sendall(first)
            assert made.frame() is None

    await blocking(peer)
    await counted(scene, Refusal.FIRST_FRAME)


async def test_peers_that_are_slow_are_cut(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer without a handshake, and one with half a first frame, is given a while each."""
    monkeypatch.setattr("hosts.tls.peers.HANDSHAKE_S", 0.2)
    monkeypatch.setattr(listening, "FIRST_FRAME_S", 0.2)
    with socket.create_connection(("127.0.0.1", scene.door.address.port), SILENCE_S) as silent:
        assert await blocking(lambda: silent.recv(1)) == b""
    await counted(scene, Refusal.HANDSHAKE)

    with await blocking(scene.peer) as peer:
        peer.sock.sendall(HEADER.pack(10, 0, Kind.ENROL, 0, 0, 0)[:7])
        assert await blocking(peer.frame) is None
    await counted(scene, Refusal.FIRST_FRAME)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_handshake_that_is_given_up_closes_its_descriptor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """The event loop closes it; the socket object must not, as its number may be in use again."""
    monkeypatch.setattr(peers, "HANDSHAKE_S", 30.0 if is_cancelled else 0.1)

    async def main() -> None:
        context = Contexts(Authority.open(tmp_path, 1, time.time), time.time).server()
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), SILENCE_S) as silent,
        ):
            sock, (host, _) = listener.accept()
            sock.setblocking(False)
            accepting = asyncio.create_task(peers.accept(sock, host, context))
            await asyncio.wait([accepting], timeout=0.05 if is_cancelled else None)
            accepting.cancel()
            await asyncio.wait([accepting])
            assert sock.fileno() == -1
            assert await blocking(lambda: silent.recv(1)) == b""
            with pytest.raises((peers.PeerRefused, asyncio.CancelledError)):
                accepting.result()

    uvloop.run(main())


async def test_a_body_that_never_comes_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENROL has to be there as soon as its head."""
    monkeypatch.setattr(listening, "FIRST_FRAME_S", 0.2)
    with await blocking(scene.peer) as peer:
        peer.sock.sendall(HEADER.pack(30_000, 0, Kind.ENROL, 0, 0, 0) + b"{")
        assert await blocking(peer.frame) is None
    await counted(scene, Refusal.FIRST_FRAME)


async def test_floods_of_one_source_are_bounded(scene: Scene) -> None:
    """Connections without a handshake are bounded, and so are those in a short time; a link that
    is open is not disturbed."""
    one, loop, port = scene.admit(), asyncio.get_running_loop(), scene.door.address.port
    with await blocking(scene.replica) as peer, await linked(scene, one, peer) as sock:
        silent = [
            socket.create_connection(("127.0.0.1", port)) for _ in range(SOURCE_UNFINISHED_MAX + 5)
        ]
        await counted(scene, Refusal.SOURCE_FULL, 5)
        for one_silent in silent:
            one_silent.close()
        await counted(scene, Refusal.HANDSHAKE, SOURCE_UNFINISHED_MAX)

        def rush() -> None:
            for _ in range(2 * SOURCE_BURST):
                with (
                    suppress(ConnectionError),
                    socket.create_connection(("127.0.0.1", port)) as made,
                ):
                    made.sendall(b"no TLS\r\n")
                    made.recv(100)

        await blocking(rush)
        assert scene.door.refusals()[Refusal.SOURCE_RATE] > 0
        await loop.sock_sendall(sock, HEADER.pack(0, 0, Kind.PING, 0, 0, 0))
        frame = await blocking(peer.frame)
        assert frame is not None
        assert frame.kind is Kind.PING


async def test_all_connections_together_are_bounded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of enrolled replicas count: one more is refused, accepted or dialled, and those that
    are open stay."""
    one, loop = scene.admit(), asyncio.get_running_loop()
    with await blocking(scene.replica) as peer, await linked(scene, one, peer) as sock:
        monkeypatch.setattr(listening, "CONNECTIONS_MAX", 1)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await blocking(scene.replica)
        await counted(scene, Refusal.FULL)
        with pytest.raises(ConnectionError, match="expected at most 1 connections"):
            await scene.door.connect(f"tls://127.0.0.1:1/{replica_name('r1')}")
        await loop.sock_sendall(sock, HEADER.pack(0, 0, Kind.PING, 0, 0, 0))
        assert await blocking(peer.frame) is not None


async def test_without_descriptors_a_connection_ends_and_the_door_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be served now is closed, and can be dialled again."""
    one = scene.admit()
    refuse = True
    context = Contexts.server

    def server(self: Contexts) -> ssl.SSLContext:
        if refuse:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return context(self)

    monkeypatch.setattr(Contexts, "server", server)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await blocking(scene.replica)
    refuse = False
    with await blocking(scene.replica) as peer, await linked(scene, one, peer):
        pass


async def test_a_busy_address_is_an_error(scene: Scene) -> None:
    """The text says what to do; so does the one for an address of another machine."""
    host, port, _ = scene.door.address
    for listen, fault in (
        (TlsAddress(host, port), "Address already in use"),
        (TlsAddress("192.0.2.1", 0), "Cannot assign requested address"),
    ):
        other = LinkDoor(listen, None, scene.authority, scene.wall)
        with pytest.raises(BadRequest) as caught:
            await other.open()
        assert caught.value.message == (
            f"FN_LINK_LISTEN={listen.host}:{listen.port}: cannot listen there: {fault}. Choose an"
            " address of this machine and a port of 1024 or more that no other program uses, or"
            " unset it if no replica dials in"
        )
        await other.close()


async def test_a_door_that_has_died_is_a_reason(scene: Scene, tmp_path: Path) -> None:
    """A thread that ends by itself is a reason of /readyz; what waits for a replica gets an error,
    and nothing waits after that."""
    assert scene.door.reasons() == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tls://127.0.0.1:{silent.getsockname()[1]}/{replica_name('r1')}"
        waiting = asyncio.create_task(scene.door.connect(address))
        sock, _ = await blocking(silent.accept)
        with capture_logs():
            scene.door._call(die)
            with pytest.raises(ConnectionError, match="the door for replicas has ended: SystemEx"):
                await waiting
        sock.close()
    assert scene.door.reasons() == [
        "links: the door for replicas has ended: SystemExit: of this test"
    ]
    with pytest.raises(ConnectionError, match="has ended"):
        await scene.door.connect(address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", scene.door.address.port))
    scene.admit("r2")
    scene.door.forget("r2")
    scene.door.identify(None)


def die() -> None:
    raise SystemExit("of this test")


async def test_certificates_are_renewed_in_half_of_their_life(scene: Scene) -> None:
    """The server's and the gateways' certificates are others from then on, and not before; links
    that are open stay."""
    one, loop = scene.admit(), asyncio.get_running_loop()

    # In the past, so that the certificates after it are valid for a peer with the real clock.
    scene.offset_s = began_s = -LIFE_S / 2 + 30

    def number() -> int:
        with scene.replica() as made:
            certificate = made.sock.getpeercert(binary_form=True)
            assert certificate is not None
            return x509.load_der_x509_certificate(certificate).serial_number

    with await blocking(scene.replica) as peer, await linked(scene, one, peer) as sock:
        before, route = await blocking(number), scene.door.gateway_route()
        scene.offset_s = began_s + LIFE_S / 2 - 10
        assert await blocking(number) == before
        assert scene.door.gateway_route() == route
        scene.offset_s = began_s + LIFE_S / 2
        after, renewed = await blocking(number), scene.door.gateway_route()
        assert after != before
        assert (renewed.authority, renewed.epoch) == (route.authority, 1)
        assert renewed.certificate != route.certificate
        assert epoch_of(after) == 1

        await loop.sock_sendall(sock, HEADER.pack(0, 0, Kind.PING, 0, 0, 0))
        assert await blocking(peer.frame) is not None


async def test_a_door_that_closes_ends_its_links(scene: Scene) -> None:
    """Links that the manager has not closed are cut, and nothing can be dialled."""
    one, loop, port = scene.admit(), asyncio.get_running_loop(), scene.door.address.port
    with (
        await blocking(scene.replica) as peer,
        await linked(scene, one, peer) as sock,
        socket.create_connection(("127.0.0.1", port), SILENCE_S) as silent,
    ):
        await scene.door.close()
        assert await loop.sock_recv(sock, 1) == b""
        assert await blocking(peer.frame) is None
        with suppress(ConnectionError):
            assert await blocking(lambda: silent.recv(1)) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    scene.door.forget("r1")
    assert scene.door.served_bytes("r1") == 0
