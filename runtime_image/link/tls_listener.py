"""The data listener of a replica that dials in: TLS, for the server and its gateways only."""

from __future__ import annotations

import errno
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

from runtime_image.link.credentials import Credentials
from runtime_image.link.handshake_limits import HandshakeLimits, source_of
from runtime_image.link.tcp_state import is_silent
from runtime_image.link.tls_socket import TlsSocket

BACKLOG: Final = 128
UNREAD_MAX: Final = 4 * 1024 * 1024
"""Bytes of a connection that wait in the kernel, where its `rmem_max` allows to set that; it keeps
as much again for its own use."""
HANDSHAKE_S: Final = 5.0
"""Seconds that a connection has for its handshake."""
SILENT_S: Final = 20.0
"""Seconds without any packet of a peer that owes an acknowledgement, after which it counts as gone.
Longer than a peer that owes nothing is silent."""
STEPS_MAX: Final = 8
"""Max steps of handshakes in one call of `accept`, so that the loop has its turns."""


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A connection whose handshake is not over."""

    sock: TlsSocket
    address: Any
    source: str
    since_s: float


class TlsListener:
    """Accepts connections as a listening socket does, each after its handshake.

    Its descriptor is readable when a connection has come or a handshake can go on; `accept` may
    then still raise BlockingIOError. Call `expire` every second. Thread-safe.
    """

    def __init__(
        self,
        sock: socket.socket,
        credentials: Credentials,
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
    ) -> None:
        """Owns `sock`, which listens. `silent_s` as `SILENT_S`."""
        sock.setblocking(False)
        _bound_buffers(sock)
        self._sock = sock
        self._credentials = credentials
        self._clock = clock
        self._silent_s = silent_s
        self._timeout_s: float | None = None
        self._events = select.epoll()
        self._events.register(sock, select.EPOLLIN)
        self._unfinished: dict[int, _Unfinished] = {}
        self._accepted = WeakSet[TlsSocket]()
        """Connections that were handed out, as long as somebody has them."""
        self._silent = set[TlsSocket]()
        """Those whose peer was silent at the last look."""
        self._limits = HandshakeLimits(clock())
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._sock.getsockname()[1])

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._events.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """As of a listening socket."""
        self._timeout_s = None if flag else 0.0

    def settimeout(self, value: float | None, /) -> None:
        """As of a listening socket."""
        self._timeout_s = value

    def accept(self) -> tuple[TlsSocket, Any]:
        """As of a listening socket."""
        until_s = None if self._timeout_s is None else self._clock() + self._timeout_s
        while True:
            with self._lock:
                one = self._step()
            if one is not None:
                one.sock.settimeout(None)
                return one.sock, one.address
            if self._timeout_s == 0:
                raise BlockingIOError(errno.EAGAIN, "no connection is ready")
            left_s = HANDSHAKE_S if until_s is None else until_s - self._clock()
            if left_s <= 0:
                raise TimeoutError("timed out")
            select.select([self._events], [], [], min(left_s, HANDSHAKE_S))
            self.expire()

    def expire(self) -> None:
        """Close connections whose handshake takes too long, and break those that were handed out
        whose peer was silent at this look and at the one before."""
        with self._lock:
            before_s = self._clock() - HANDSHAKE_S
            for one in [one for one in self._unfinished.values() if one.since_s <= before_s]:
                self._give_up(one)
            silent = {sock for sock in self._accepted if is_silent(sock, self._silent_s)}
            for sock in silent & self._silent:
                with suppress(OSError):  # it has just ended
                    sock.shutdown(socket.SHUT_RDWR)
            self._silent = silent - self._silent

    def close(self) -> None:
        """Close the listener, and the connections that it has not handed out."""
        with self._lock:
            for one in list(self._unfinished.values()):
                self._give_up(one)
            self._events.close()
            self._sock.close()

    def _step(self) -> _Unfinished | None:
        """Accept connections and go on with handshakes; return one that is over."""
        for _ in range(STEPS_MAX):
            ready = self._events.poll(0, 1)
            if not ready:
                return None
            one = self._unfinished.get(ready[0][0])
            if one is None:
                self._take()
            elif self._shake(one):
                return one
        return None

    def _take(self) -> None:
        try:
            sock, address = self._sock.accept()
        except OSError:
            return
        source, now = source_of(address[0]), self._clock()
        if not self._limits.begin(source, now):
            sock.close()
            return
        sock.settimeout(0)
        one = _Unfinished(self._credentials.server(sock), address, source, now)
        self._unfinished[one.sock.fileno()] = one
        self._events.register(one.sock, select.EPOLLIN)

    def _shake(self, one: _Unfinished) -> bool:
        """Go on with a handshake; return whether it is over. One that fails is closed."""
        try:
            event = one.sock.handshake()
        except OSError:
            self._give_up(one)
            return False
        if event:
            # A handshake writes so little that it never waits to write, but for a hostile peer.
            wanted = select.EPOLLIN if event == selectors.EVENT_READ else select.EPOLLOUT
            self._events.modify(one.sock, wanted)
            return False
        self._forget(one, is_good=True)
        self._accepted.add(one.sock)
        return True

    def _give_up(self, one: _Unfinished) -> None:
        self._forget(one, is_good=False)
        one.sock.close()

    def _forget(self, one: _Unfinished, *, is_good: bool) -> None:
        self._events.unregister(one.sock)
        del self._unfinished[one.sock.fileno()]
        self._limits.end(one.source, is_good=is_good)


def _bound_buffers(listener: socket.socket) -> None:
    """Bound what connections hold of an upload that stalls: the kernel lets a buffer grow to its
    `tcp_rmem`, 6 MiB by default and 32 MiB on hosts that are tuned. A host whose `rmem_max` is
    below UNREAD_MAX keeps its own rule: a smaller window would slow distant gateways."""
    option = socket.SOL_SOCKET, socket.SO_RCVBUF
    with socket.socket(listener.family) as probe:
        probe.setsockopt(*option, UNREAD_MAX)
        is_allowed = probe.getsockopt(*option) >= UNREAD_MAX
    if is_allowed:
        listener.setsockopt(*option, UNREAD_MAX)
