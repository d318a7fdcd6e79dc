"""Tests of TlsChannel beside a peer that sends records which no replica sends."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.hosts import tls_channel
from gateway.hosts.tls import client_context
from gateway.hosts.tls_channel import TlsChannel
from hosts.errors import ConnectionLost
from tests.support.small_authority import SmallAuthority
from tests.support.tls_front import NAME, route_of

WAIT_S = 20.0
APPLICATION, HANDSHAKE, ALERT = 23, 22, 21
CLOSE_NOTIFY = b"\1\0"


class Records:
    """Encrypts records of a server from its secret: RFC 8446, sections 5.2 and 7."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == hashlib.sha384().digest_size, "expected TLS_AES_256_GCM_SHA384"
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret, self._sent = secret, 0
        self._key = AESGCM(self._expand(b"key", 32))
        self._iv = int.from_bytes(self._expand(b"iv", 12))

    def _expand(self, label: bytes, length: int) -> bytes:
        text = b"tls13 " + label
        info = struct.pack(">HB", length, len(text)) + text + b"\0\1"
        return hmac.new(self._secret, info, hashlib.sha384).digest()[:length]

    def record(self, kind: int, data: bytes) -> bytes:
        """Return a record of a kind."""
        inner = data + bytes([kind])
        head = struct.pack(">BHH", APPLICATION, 0x303, len(inner) + 16)
        nonce = (self._iv ^ self._sent).to_bytes(12)
        self._sent += 1
        return head + self._key.encrypt(nonce, inner, head)

    def key_update(self) -> bytes:
        """Return a KeyUpdate that asks for one of the other side."""
        sent = self.record(HANDSHAKE, bytes([24, 0, 0, 1, 1]))
        self._use(self._expand(b"traffic upd", 48))
        return sent


class Peer:
    """A server that shakes hands with one client, and then sends what it is told."""

    def __init__(self, folder: Path) -> None:
        self.authority = SmallAuthority()
        self._folder = folder
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT_S)
        self._thread = threading.Thread(target=self._shake)
        self._thread.start()

    def _shake(self) -> None:
        identity = self.authority.issue(NAME)
        file, log = self._folder / "identity", self._folder / "secrets"
        file.write_text(identity["certificate"] + identity["key"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # the first record after the handshake is ours
        context.load_cert_chain(file)
        context.keylog_filename = str(log)
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(WAIT_S)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        while not self._is_done(tls):
            self.sock.sendall(outgoing.read())
            incoming.write(self.sock.recv(65536))
        self.sock.sendall(outgoing.read())
        lines = [line.split() for line in log.read_text().splitlines()]
        [secret] = [words[2] for words in lines if words[0] == "SERVER_TRAFFIC_SECRET_0"]
        self.records = Records(bytes.fromhex(secret))

    @staticmethod
    def _is_done(tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def send(self, data: bytes) -> None:
        """Send bytes of TCP, all or until the client closes."""
        with suppress(OSError):
            await asyncio.to_thread(self.sock.sendall, data)

    async def shaken(self) -> None:
        """Wait for the end of the handshake."""
        await asyncio.to_thread(self._thread.join, WAIT_S)

    def close(self) -> None:
        """Close everything."""
        self._thread.join(WAIT_S)
        self.sock.close()
        self.listener.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """A hostile peer."""
    made = Peer(tmp_path)
    yield made
    made.close()


class Client(asyncio.Protocol):
    """A protocol that goes on after the other side's end, and pauses after `pause_at` bytes."""

    def __init__(self, pause_at: int = 2**62) -> None:
        self.received, self.pause_at = 0, pause_at
        self.is_ended, self.changed = False, asyncio.Event()
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsChannel)
        self.channel = transport

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received > self.pause_at:
            self.channel.pause_reading()
        self.changed.set()

    def eof_received(self) -> bool:
        self.is_ended = True
        self.changed.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that its callbacks change."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


Scene = Callable[[Client, TlsChannel], Awaitable[None]]


@pytest.fixture(params=[asyncio.run, uvloop.run])
def play(request: pytest.FixtureRequest, peer: Peer) -> Callable[[Scene, Client | None], None]:
    """Run a scene with a channel to the peer, in each kind of event loop."""

    async def run(scene: Scene, make: Callable[[], Client]) -> None:
        loop, client = asyncio.get_running_loop(), make()
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, peer.listener.getsockname())
        context = client_context(route_of(peer.authority))
        channel = TlsChannel(context, NAME, client, lambda _: None)
        await loop.create_connection(lambda: channel, sock=sock)
        await channel.shaken
        await peer.shaken()
        try:
            await scene(client, channel)
        finally:
            channel.abort()
            await client.until(lambda: bool(client.lost))

    return lambda scene, make=Client: request.param(run(scene, make))


Play = Callable[..., None]


def test_answers_to_key_updates_are_sent_and_limited(play: Play, peer: Peer) -> None:
    """A few are answered at once, though this side writes nothing. A flood ends the channel."""

    async def scene(client: Client, channel: TlsChannel) -> None:
        # OpenSSL answers as it meets the next record.
        updates = peer.records.key_update() + peer.records.key_update()
        await peer.send(updates + peer.records.record(APPLICATION, b"x"))
        await client.until(lambda: client.received == 1)
        assert await asyncio.to_thread(peer.sock.recv, 100)

        await peer.send(b"".join(peer.records.key_update() for _ in range(20_000)))
        await client.until(lambda: bool(client.lost))
        assert isinstance(client.lost[0], ConnectionLost)
        assert "KeyUpdates" in str(client.lost[0])

    play(scene)


def test_what_follows_the_end_is_dropped(play: Play, peer: Peer) -> None:
    """The channel keeps no byte of it, and this side may still send."""

    async def scene(client: Client, channel: TlsChannel) -> None:
        await peer.send(peer.records.record(ALERT, CLOSE_NOTIFY))
        await client.until(lambda: client.is_ended)
        await peer.send(bytes(8 * 2**20))  # more than the kernel takes: it was read
        assert channel._incoming.pending == 0

        channel.write(b"still here")
        assert await asyncio.to_thread(peer.sock.recv, 100)
        assert not client.lost

    play(scene)


def test_an_end_is_sent_while_a_part_of_a_record_is_undelivered(play: Play, peer: Peer) -> None:
    """What the peer has sent is delivered, however its records lie in the buffers."""
    size, count = 10_000, 20

    async def scene(client: Client, channel: TlsChannel) -> None:
        records = [peer.records.record(APPLICATION, bytes(size)) for _ in range(count)]
        await peer.send(b"".join(records) + peer.records.record(ALERT, CLOSE_NOTIFY))
        await client.until(lambda: client.received > client.pause_at)
        assert channel._tls.pending()

        client.pause_at = 2**62
        channel.write_eof()
        channel.resume_reading()
        await client.until(lambda: client.is_ended or bool(client.lost))
        assert client.received == size * count
        assert not client.lost

    play(scene, lambda: Client(pause_at=6 * size))


def test_a_peer_that_reads_nothing_does_not_hold_up_a_close(
    play: Play, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not read in time is lost, as on a broken connection."""
    monkeypatch.setattr(tls_channel, "CLOSING_S", 0.1)

    async def scene(client: Client, channel: TlsChannel) -> None:
        channel.write(bytes(64 * 2**20))
        channel.close()
        await client.until(lambda: bool(client.lost))
        assert isinstance(client.lost[0], ConnectionLost)

    play(scene)
