"""An HTTP server with scripted answers on keep-alive connections, for load generators."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

Script = Callable[[int], bytes]
"""Returns the bytes of the answer to the n-th request, from 0 on, of all connections together; b""
closes the connection."""
READ = 65_536


def answer(status: int = 200, body: bytes = b"ok", *heads: str) -> bytes:
    """Return an answer with a length."""
    lines = [f"HTTP/1.1 {status} X", *heads, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def problem(status: int, code: str) -> bytes:
    """Return a refusal of fngate."""
    body = f'{{"type":"urn:fngate:problem:{code}","code":"{code}"}}'.encode()
    return answer(status, body, "Content-Type: application/problem+json")


class Target:
    """A listening server. `requests` counts requests, `opened` connections."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script, self._tls = script, tls
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.port: int = self._listener.getsockname()[1]
        self.requests = self.opened = 0
        self._threads[0].start()

    def close(self) -> None:
        """Go away: stop listening and cut every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the ends of all threads."""
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.opened += 1
            thread = threading.Thread(target=self._serve, args=(connected,))
            with self._lock:
                self._sockets.append(connected)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        with ExitStack() as stack, suppress(OSError):
            stack.enter_context(connected)
            if self._tls is not None:
                connected = stack.enter_context(self._tls.wrap_socket(connected, server_side=True))
            while self._read(connected):
                with self._lock:
                    number, self.requests = self.requests, self.requests + 1
                sent = self._script(number)
                if not sent:
                    return
                connected.sendall(sent)

    @staticmethod
    def _read(connected: socket.socket) -> bool:
        """Read one request without a body, or with a length; return whether it is whole."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connected.recv(READ)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        left = int(length or 0) - len(body)
        while left > 0:
            piece = connected.recv(READ)
            if not piece:
                return False
            left -= len(piece)
        return True


@contextmanager
def target(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Target]:
    """Run a server for the block, with TLS if a context is given."""
    running = Target(script, tls)
    try:
        yield running
    finally:
        running.close()
        running.join()
