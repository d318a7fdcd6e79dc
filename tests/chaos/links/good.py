"""A replica that behaves: its control link answers PINGs, and it fetches its file again and again,
each time on a new connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, FrameReader, pack
from tests.chaos.links.attacks import Peer, Target, hello

RANGE: Final = 8 * 1024 * 1024
PAUSE_S: Final = 0.3
PATIENCE_S: Final = 30.0


class Own(Peer):
    """Its connections come from an address that no attacker has."""

    def __init__(self, target: Target) -> None:
        """Connect with its certificate. Raises OSError."""
        self.target = target
        self.sock = socket.create_connection((target.host, target.port), PATIENCE_S)
        try:
            self.wrap("good")
        except OSError:
            self.sock.close()
            raise
        self._frames = FrameReader()

    def next(self) -> list[Frame]:
        """Return the next frames. Raises OSError at the end."""
        while True:
            assert isinstance(self.sock, ssl.SSLSocket)
            count = self.sock.recv_into(self._frames.buffer())
            if not count:
                raise ConnectionError("the door closed the connection")
            if frames := self._frames.received(count):
                return frames


@dataclass
class GoodReplica:
    """Runs in two threads from `with` to its end."""

    target: Target
    token: str
    breaks: list[str] = field(default_factory=list)
    """Why its control link ended."""
    fetched: list[tuple[float, float]] = field(default_factory=list)
    """When each FETCH began, with its connection, and its seconds."""
    refused: list[tuple[float, str]] = field(default_factory=list)
    """When one failed, and why."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _link: Own | None = None

    def __enter__(self) -> Self:
        self._link = Own(self.target)
        hello(self._link, self.token)
        self._threads = [threading.Thread(target=one) for one in (self._answer, self._fetch)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        assert self._link is not None
        with contextlib.suppress(OSError):
            self._link.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._link.close()

    def _answer(self) -> None:
        assert self._link is not None
        pong = b"".join(pack(Kind.PONG))
        try:
            while True:
                for frame in self._link.next():
                    if frame.kind is Kind.PING:
                        self._link.sock.sendall(pong)
        except OSError as error:
            if not self._stop.is_set():
                self.breaks.append(repr(error))

    def _fetch(self) -> None:
        while not self._stop.wait(PAUSE_S):
            began_s = time.monotonic()
            try:
                self._fetched_once()
            except OSError as error:
                self.refused.append((began_s, repr(error)))
            else:
                self.fetched.append((began_s, time.monotonic() - began_s))

    def _fetched_once(self) -> None:
        peer = Own(self.target)
        try:
            peer.send(Kind.FETCH, {"sha256": self.target.file, "offset": 0, "length": RANGE}, id=1)
            size = 0
            while True:
                for frame in peer.next():
                    if frame.kind is Kind.PART:
                        size += len(frame.body)
                    elif frame.kind is Kind.END and size == RANGE:
                        return
                    else:
                        raise ConnectionError(f"{frame.kind.name} after {size} bytes")
        finally:
            peer.close()
