"""A server's own counter of its work, read from its metrics in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from typing import Final

from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import Connecting, Server

BODY_MAX: Final = 4 * 1024 * 1024
"""Max bytes of an answer that are read; one that is longer counts as none."""
LIMIT_S: Final = 5.0
"""Seconds after which the metrics count as not answered."""
_READ: Final = 256 * 1024


def read_counter(answer: bytes, name: str) -> float | None:
    """Return the sum of a metric over its labels in an HTTP answer, None if it has no such metric.

    Lines of other metrics, and values that are no finite number, are skipped. Pure.
    """
    wanted, total = name.encode(), None
    for line in answer.split(b"\n"):
        if not line.startswith(wanted):
            continue
        rest = line[len(wanted) :]
        if rest[:1] == b"{":
            rest = rest.rpartition(b"}")[2]
        elif rest[:1] not in (b" ", b"\t"):
            continue  # a longer name
        words = rest.split(None, 1)
        try:
            value = float(words[0]) if words else math.nan
        except ValueError:
            continue
        if math.isfinite(value):
            total = value if total is None else total + value
    return total


class CounterProbe:
    """One request for the metrics. `read` is called once, with the whole answer, b"" without one.

    The request is HTTP/1.0, to which no answer may have a chunked coding (RFC 9112, 6.1).
    """

    def __init__(
        self, loop: Loop, server: Server, path: str, read: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._server = server
        self._read = read
        self._request = (
            f"GET {path} HTTP/1.0\r\nHost: {server.name}\r\n"
            "User-Agent: fngate-probe\r\nConnection: close\r\n\r\n"
        ).encode("ascii")
        self._sock: socket.socket | None = None
        self._data = bytearray()
        self._is_over = False
        loop.after(LIMIT_S, lambda: self._end(b""))
        self._connecting = Connecting(loop, server, self._connected)

    def close(self) -> None:
        """End the request without a call of `read`."""
        self._is_over = True
        self._connecting.cancel()
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None

    def _connected(self, sock: socket.socket | None, _reason: str) -> None:
        if sock is None:
            # Later: this may still be the constructor.
            self._loop.post(lambda: self._end(b""))
            return
        if self._is_over:
            sock.close()
            return
        self._sock = sock
        self._loop.watch(sock, self._readable)
        try:
            sock.send(self._request)  # a few bytes always fit the buffer of a new socket
        except OSError:
            self._loop.post(lambda: self._end(b""))

    def _readable(self) -> None:
        if self._sock is None:
            return
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end(b"")
            return
        self._data += data
        if not data:
            self._end(bytes(self._data))
        elif len(self._data) > BODY_MAX:
            self._end(b"")

    def _end(self, answer: bytes) -> None:
        if not self._is_over:
            self.close()
            self._read(answer)
