"""Connections to the server, non-blocking, over TCP on the loopback interface or a Unix socket.

A connection counts only if it leads to the server: not to itself, and in the host's network only to
a port on which no other process listens.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime_image.replica.loop import Loop
from runtime_image.server import listeners
from runtime_image.server.process_tree import descendants

REFUSED: Final = "connection refused"
RETRY_S: Final = 0.01
"""Interval between two attempts while a Unix socket's backlog is full."""
HOSTS: Final = ("127.0.0.1", "::1")
"""Loopback addresses. Servers that listen on `localhost` may choose either."""

Done = Callable[[socket.socket | None, str], None]
"""Receives the connection, or None and the reason."""


class Server:
    """Address of a server. `host` is the one of HOSTS at which it answered last."""

    def __init__(
        self, port: int, socket_path: Path | None, *, is_shared: bool, name: str = ""
    ) -> None:
        """`socket_path`: connect to this Unix socket instead of the port. `is_shared`: other
        processes of this machine can listen on the port. `name`: as the property, "" for the
        address."""
        self.port = port
        self._name = name
        self.host = HOSTS[0]
        self.socket_path = socket_path
        self.is_shared = is_shared
        self._held: list[tuple[int, str]] = []
        """The server's listening sockets at the port, as found last."""

    @property
    def name(self) -> str:
        """Value of the Host field of our own requests."""
        return self._name or ("localhost" if self.socket_path else f"127.0.0.1:{self.port}")

    def at(self, port: int) -> Server:
        """Return the server as it is reached at another port, which is its own."""
        return Server(port, None, is_shared=False, name=self._name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Addresses to try."""
        return ("",) if self.socket_path else HOSTS

    def begin(self, host: str = "") -> tuple[socket.socket, int]:
        """Return a non-blocking socket and the error of its connect(2), 0 for none."""
        if self.socket_path is not None:
            return self._begin_unix(self.socket_path)
        host = host or self.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, sock.connect_ex((host, self.port))

    def _begin_unix(self, path: Path) -> tuple[socket.socket, int]:
        """Connect through a descriptor of the socket file itself: the server owns the folder, and
        a link in it could lead anywhere."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                file = os.open(path.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            return sock, error.errno or errno.EIO
        try:
            if not stat.S_ISSOCK(os.fstat(file).st_mode):
                return sock, errno.ECONNREFUSED
            return sock, sock.connect_ex(f"/proc/self/fd/{file}")
        finally:
            os.close(file)

    def why_not(self, sock: socket.socket) -> str:
        """Return why an established connection must not be used, "" if it may be."""
        if self.socket_path is not None:
            return ""
        try:
            if sock.getsockname() == sock.getpeername():
                return REFUSED
        except OSError as error:
            return str(error)
        return self._stranger() if self.is_shared else ""

    def _stranger(self) -> str:
        # As long as the server holds its listening sockets, nobody else gets the port; the whole
        # search takes milliseconds.
        if self._held and all(listeners.leads_to(path, inode) for inode, path in self._held):
            return ""
        at_port = {one.inode for one in listeners.listeners() if one.port == self.port}
        own = listeners.sockets_of(descendants(os.getpid()))
        is_own = bool(at_port) and at_port <= own.keys()
        self._held = [(inode, own[inode]) for inode in at_port] if is_own else []
        return "" if is_own else f"another process listens on port {self.port}"


class Connecting:
    """One attempt to connect, which calls `done` once unless it is cancelled.

    The owner limits its time. `done` may be called before the constructor returns.
    """

    def __init__(self, loop: Loop, server: Server, done: Done, host: str = "") -> None:
        self._loop = loop
        self._server = server
        self._done = done
        self._host = host
        self._sock: socket.socket | None = None
        self.is_over = False
        self._begin()

    def cancel(self) -> None:
        """Give up."""
        self.is_over = True
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None

    def _begin(self) -> None:
        if self.is_over:
            return
        try:
            sock, error = self._server.begin(self._host)
        except OSError as failed:
            self._end(None, str(failed))
            return
        if error == errno.EINPROGRESS and not _is_writable(sock):
            self._sock = sock
            self._loop.when_writable(sock, self._writable)
        elif error == errno.EAGAIN:
            sock.close()
            self._loop.after(RETRY_S, self._begin)
        else:
            self._connected(sock, 0 if error == errno.EINPROGRESS else error)

    def _writable(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.forget(sock)
            self._connected(sock, 0)

    def _connected(self, sock: socket.socket, error: int) -> None:
        error = error or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            refused = error in (errno.ECONNREFUSED, errno.ENOENT, errno.EADDRNOTAVAIL)
            reason = REFUSED if refused else os.strerror(error)
        else:
            reason = self._server.why_not(sock)
        if reason:
            sock.close()
            self._end(None, reason)
        else:
            self._end(sock, "")

    def _end(self, sock: socket.socket | None, reason: str) -> None:
        self.is_over = True
        self._done(sock, reason)


def _is_writable(sock: socket.socket) -> bool:
    """Whether a connection is established or refused already, as usual on the loopback
    interface."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(0))


def shut(sock: socket.socket) -> None:
    """Shut a connection down for every holder of its socket, and close this descriptor."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
