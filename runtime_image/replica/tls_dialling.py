"""How a replica connects to the server's door.

A sidecar enters a network namespace in which the server cannot be reached. A socket stays in the
namespace in which it was made, so one socket, made at the start, makes every connection: it is
disconnected by connect(2) to no address and connected again.

The address is the number that answered at the enrolment, so that no dial waits for a name server. A
server that was moved has another one: its name is resolved again after RESOLVE_S without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import selectors
import socket
import threading
from functools import partial
from typing import Any, Final, cast

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import Certificate
from runtime_image.link.credentials import Credentials
from runtime_image.link.frames import Frame, LinkError
from runtime_image.link.tls_socket import TlsSocket
from runtime_image.replica.dialling import Dialled
from runtime_image.replica.loop import Loop

DIAL_S: Final = 5.0
"""Seconds after which a connection without a finished handshake is given up."""
RESOLVE_S: Final = 10.0
"""Seconds without a connection after which the server's name is resolved again, and between two
such attempts."""
_NO_ADDRESS: Final = bytes(16)
"""`struct sockaddr` of the family AF_UNSPEC."""


class TlsDialler:
    """Connects to the server's door, by numbers that `server` has resolved to."""

    def __init__(self, peer: socket.socket, credentials: Credentials, server: TlsAddress) -> None:
        """`peer`: an open connection to the door; `server`: the address of the door."""
        self._address: Any = peer.getpeername()
        self._credentials = credentials
        self._server = server
        self._kept = socket.socket(peer.family, socket.SOCK_STREAM)
        self._failing_s: float | None = None
        """Since when there is no connection, or when the name was resolved last; None: there was
        one at the last dial."""
        self._resolving: threading.Thread | None = None

    @property
    def address(self) -> TlsAddress:
        """The number that is dialled now."""
        return TlsAddress(*self._address[:2])

    def connect(self, timeout_s: float) -> socket.socket:
        """Dialler."""
        sock = self._fresh()
        try:
            sock.settimeout(timeout_s)
            sock.connect(self._address)
            tls = self._credentials.client(sock)
        except BaseException:
            sock.close()
            raise
        try:
            tls.complete()
        except BaseException:
            tls.close()
            raise
        return tls

    def begin(self, loop: Loop, dialled: Dialled) -> None:
        """Dialler."""
        self._resolve_if_failing(loop)
        try:
            sock = self._fresh()
        except OSError:
            dialled(None)
            return
        sock.setblocking(False)
        error = sock.connect_ex(self._address)
        if error in (0, errno.EINPROGRESS):
            _Dial(loop, sock, self._credentials, partial(self._dialled, dialled))
        else:
            sock.close()
            dialled(None)

    def renew(self, frame: Frame) -> None:
        """Dialler: replace certificate and key; open connections stay."""
        self._credentials.replace(certificate_of(frame))

    def close(self) -> None:
        """Connect no more."""
        self._kept.close()

    def _dialled(self, dialled: Dialled, sock: socket.socket | None) -> None:
        if sock is not None:
            self._failing_s = None
        dialled(sock)

    def _resolve_if_failing(self, loop: Loop) -> None:
        """Resolve the server's name in a thread, one at a time: a name server may be silent."""
        now = loop.clock()
        if self._failing_s is None:
            self._failing_s = now
        if now - self._failing_s < RESOLVE_S or self._server.host == self.address.host:
            return
        if self._resolving is None or not self._resolving.is_alive():
            self._failing_s = now
            self._resolving = threading.Thread(target=self._resolve, args=(loop,), daemon=True)
            self._resolving.start()

    def _resolve(self, loop: Loop) -> None:
        with contextlib.suppress(OSError, UnicodeError):  # else the address stays
            host, port, _ = self._server
            found = socket.getaddrinfo(host, port, self._kept.family, socket.SOCK_STREAM)
            loop.post(partial(self._move, [one[4] for one in found]))

    def _move(self, addresses: list[Any]) -> None:
        """Dial another one of the addresses from now on, if there is one."""
        self._address = next((one for one in addresses if one != self._address), self._address)

    def _fresh(self) -> socket.socket:
        """Return a socket that is not connected; the connection before is reset."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.connect(self._kept.fileno(), _NO_ADDRESS, len(_NO_ADDRESS)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return self._kept.dup()


class _Dial:
    """One attempt: connects, then shakes hands."""

    def __init__(
        self, loop: Loop, sock: socket.socket, credentials: Credentials, dialled: Dialled
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._credentials = credentials
        self._dialled: Dialled | None = dialled
        self._tls: TlsSocket | None = None
        self._event = selectors.EVENT_WRITE
        loop.rewatch(sock, 0, self._event, self._connected)
        loop.after(DIAL_S, self._expire)

    def _connected(self) -> None:
        self._loop.rewatch(self._sock, self._event, 0, self._connected)
        self._event = 0
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(None)
            return
        self._sock = self._tls = self._credentials.client(self._sock)
        self._shake()

    def _shake(self) -> None:
        assert self._tls is not None
        try:
            event = self._tls.handshake()
        except OSError:
            self._end(None)
            return
        if event:
            self._loop.rewatch(self._tls, self._event, event, self._shake)
            self._event = event
        else:
            self._end(self._tls)

    def _expire(self) -> None:
        if self._dialled is not None:
            self._end(None)

    def _end(self, tls: TlsSocket | None) -> None:
        """Hand the connection out, or close it."""
        dialled, self._dialled = self._dialled, None
        assert dialled is not None
        self._loop.rewatch(self._sock, self._event, 0, self._shake)
        if tls is None:
            self._sock.close()
        dialled(tls)


def certificate_of(frame: Frame) -> Certificate:
    """Return the `Certificate` in the body of a frame. Raises LinkError."""
    try:
        data = json.loads(frame.body)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed {frame.kind.name}: {error}") from error
    names = ("certificate", "key")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in names):
        raise LinkError(f"malformed {frame.kind.name}: expected texts as {' and '.join(names)}")
    return cast("Certificate", data)
