"""Opening connections beside a running load, in threads, so that no handshake delays a call."""

from __future__ import annotations

import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

CONNECT_S: Final = 10.0
"""Max seconds of one attempt."""
THREADS: Final = 8
REASON_MAX: Final = 500

Open = Callable[[], socket.socket]
"""Returns a connected socket. Raises OSError."""


def directly(host: str, port: int, *, is_secure: bool) -> Open:
    """Return an Open that connects to `host`, with TLS if `is_secure`."""
    context = ssl.create_default_context() if is_secure else None

    def open_socket() -> socket.socket:
        sock = socket.create_connection((host, port), CONNECT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(sock, server_hostname=host) if context else sock

    return open_socket


def passed(fd: int) -> Open:
    """Return an Open that receives connected sockets over the Unix socket `fd`: a byte asks for
    one, and a message without a descriptor is the reason for having none."""
    channel = socket.socket(fileno=fd)
    lock = threading.Lock()

    def open_socket() -> socket.socket:
        with lock:
            channel.sendall(b"?")
            reason, fds, _, _ = socket.recv_fds(channel, REASON_MAX, 1)
        if not fds:
            raise OSError(reason.decode(errors="replace") or "the tunnel is closed")
        return socket.socket(fileno=fds[0])

    return open_socket


class Opener:
    """Threads that open connections. `fd` is readable when `taken` has something."""

    def __init__(self, open_socket: Open) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = open_socket
        self._asked: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[socket.socket | OSError] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def ask(self, pause_s: float = 0.0) -> None:
        """Open one more connection after `pause_s`."""
        if len(self._threads) < THREADS:
            self._threads.append(threading.Thread(target=self._run, daemon=True))
            self._threads[-1].start()
        self._asked.put(pause_s)

    def wait(self) -> list[socket.socket | OSError]:
        """Wait until something was opened or has failed, and return it."""
        select.select([self.fd], [], [])
        return self.taken()

    def taken(self) -> list[socket.socket | OSError]:
        """Return the connections opened since the last call, and the errors of failed attempts."""
        try:
            count = os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        return [self._made.get() for _ in range(count)]

    def close(self) -> None:
        """End the threads once their attempts are over, and close connections that were not
        taken."""
        self._is_closed = True
        for _ in self._threads:
            self._asked.put(0.0)
        for thread in self._threads:
            thread.join()
        for made in self.taken():
            if not isinstance(made, OSError):
                made.close()
        os.close(self.fd)

    def _run(self) -> None:
        while True:
            pause_s = self._asked.get()
            if self._is_closed:
                return
            time.sleep(pause_s)
            try:
                found: socket.socket | OSError = self._open()
            except OSError as error:
                found = error
            self._made.put(found)
            os.eventfd_write(self.fd, 1)
