"""Peers that keep a door waiting: silent ones, half-open ones, and ones that send slow bytes."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.links.attacks import Target

KINDS: Final = ("silent", "half a ClientHello", "slow bytes", "a handshake, then silence")
SLOW_S: Final = 0.3
"""Seconds between two bytes."""
CONNECT_S: Final = 5.0


@dataclass
class Waiting:
    """One of them."""

    sock: socket.socket
    kind: str
    since_s: float
    left: bytes
    next_s: float = 0.0
    wrapped: ssl.SSLObject | None = None
    incoming: ssl.MemoryBIO | None = None
    outgoing: ssl.MemoryBIO | None = None


@dataclass
class Crowd:
    """Keeps `size` such peers connected; each that is closed is replaced."""

    target: Target
    size: int
    sources: int
    chance: random.Random
    kept: Counter[str] = field(default_factory=Counter)
    """Connections by kind."""
    closed_at_once: int = 0
    """Those that were closed within 0.5 s."""
    longest_s: float = 0.0
    """For how long the door kept one of them."""
    most: int = 0
    """Connections that were open at the same time, as the peers see it."""
    entered: int = 0

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Keep the door waiting as long as `goes_on` says, then leave."""
        selector = selectors.DefaultSelector()
        peers: dict[int, Waiting] = {}
        while goes_on():
            now, opened = time.monotonic(), 0
            while len(peers) < self.size and opened < 50:
                opened += 1
                if (peer := self._connected(now)) is not None:
                    peers[peer.sock.fileno()] = peer
                    selector.register(peer.sock, selectors.EVENT_READ, peer)
            self.most = max(self.most, len(peers))
            for key, _ in selector.select(0.02):
                if not self._read(key.data):
                    self._ended(key.data)
                    selector.unregister(key.fileobj)
                    del peers[key.fd]
                    key.data.sock.close()
            for peer in peers.values():
                self._drip(peer, time.monotonic())
        for peer in peers.values():
            self.longest_s = max(self.longest_s, time.monotonic() - peer.since_s)
            peer.sock.close()
        selector.close()

    def _connected(self, now: float) -> Waiting | None:
        sock = socket.socket()
        try:
            sock.settimeout(CONNECT_S)
            if self.target.is_loopback:
                number = self.chance.randrange(self.sources)
                sock.bind((f"127.2.{number // 250}.{number % 250 + 1}", 0))
            sock.connect((self.target.host, self.target.port))
            sock.setblocking(False)
        except OSError:
            sock.close()
            return None
        kind = self.chance.choice(KINDS)
        self.kept[kind] += 1
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        wrapped = self.target.context().wrap_bio(
            incoming, outgoing, server_hostname=self.target.server_name
        )
        with contextlib.suppress(ssl.SSLWantReadError):
            wrapped.do_handshake()
        text = outgoing.read()
        peer = Waiting(sock, kind, now, text)
        if kind == "half a ClientHello":
            self._write(peer, text[: len(text) // 2])
        elif kind == KINDS[-1]:
            self._write(peer, text)
            peer.wrapped, peer.incoming, peer.outgoing = wrapped, incoming, outgoing
        return peer

    def _write(self, peer: Waiting, data: bytes) -> None:
        with contextlib.suppress(OSError):
            peer.sock.send(data)

    def _drip(self, peer: Waiting, now: float) -> None:
        if peer.kind == "slow bytes" and peer.left and now >= peer.next_s:
            self._write(peer, peer.left[:1])
            peer.left, peer.next_s = peer.left[1:], now + SLOW_S

    def _read(self, peer: Waiting) -> bool:
        """Return whether the connection goes on."""
        try:
            data = peer.sock.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or peer.wrapped is None:
            return bool(data)
        assert peer.incoming is not None
        assert peer.outgoing is not None
        peer.incoming.write(data)
        try:
            peer.wrapped.do_handshake()
            self._write(peer, peer.outgoing.read())
            if peer.wrapped.read(65536):
                self.entered += 1
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return False
        return True

    def _ended(self, peer: Waiting) -> None:
        seconds = time.monotonic() - peer.since_s
        self.longest_s = max(self.longest_s, seconds)
        self.closed_at_once += seconds < 0.5
