"""A server's own counter of its work, read from its metrics in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Callable
from itertools import islice
from typing import Final

from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import Connecting, Server

BODY_MAX: Final = 4 * 1024 * 1024
"""Max bytes of an answer that are read; one that is longer counts as none."""
LIMIT_S: Final = 5.0
"""Seconds after which the metrics count as not answered."""
SERIES_MAX: Final = 10_000
"""Max label sets of the metric that are added up, the first ones."""
_READ: Final = 256 * 1024
_LINE: Final = (
    rb'(?m)^[ \t]*+%b(?:[ \t]*+\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+\}[ \t]*+|[ \t]++)(\S++)'
)
"""A line of a metric: name, labels with texts in quotes, value. Without backtracking."""


def read_counter(answer: bytes, name: str) -> float | None:
    """Return the sum of a metric over its labels in an HTTP answer, None if it has no such metric.

    Lines of other metrics, and values that are no finite number, are skipped. Pure.
    """
    values = [
        value
        for line in islice(re.finditer(_LINE % re.escape(name.encode()), answer), SERIES_MAX)
        if math.isfinite(value := _number(line[1]))
    ]
    total = sum(values)
    return total if values and math.isfinite(total) else None


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


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
