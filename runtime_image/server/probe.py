"""Probes of a server, over a fresh connection each."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from runtime_image.contract.health import Ready
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import REFUSED, Connecting, Server
from runtime_image.server.readiness import PROBE_S, Answer, Readiness, read_status, request

HEAD_MAX: Final = 16 * 1024
"""Max bytes before the end of an answer's status line."""
_READ: Final = 64 * 1024


class Probes:
    """Probes a server until it is ready or `Readiness` is over, then calls `ended` once."""

    def __init__(
        self,
        loop: Loop,
        server: Server,
        readiness: Readiness,
        *,
        log: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._server = server
        self._readiness = readiness
        self._log = log
        self._ended = ended
        self._probe: Probe | None = None
        self._is_over = False
        self._next()

    def cancel(self) -> None:
        """Stop probing, without `ended`."""
        self._is_over = True
        if self._probe is not None:
            self._probe.close()

    def _next(self) -> None:
        if self._is_over:
            return
        if self._readiness.is_over(self._loop.clock()):
            self._is_over = True
            self._ended()
            return
        self._probe = Probe(self._loop, self._server, self._readiness.path, self._answered)

    def _answered(self, answer: Answer) -> None:
        if self._is_over:
            return
        line = self._readiness.answered(answer, self._loop.clock())
        if line:
            self._log(line)
        if self._readiness.is_ready:
            self._is_over = True
            self._ended()
        else:
            self._loop.after(self._readiness.pause_s(self._loop.clock()), self._next)


class Probe:
    """One request. Each loopback address is tried, and the one that answers is used from then on.
    `answered` is called once, unless `close` is, and never before the constructor returns."""

    def __init__(
        self,
        loop: Loop,
        server: Server,
        path: str,
        answered: Callable[[Answer], None],
        limit_s: float = PROBE_S,
        *,
        body_max: int = 0,
    ) -> None:
        """`limit_s`: seconds until the probe counts as not answered. `body_max`: read the answer to
        its end, which may have as many bytes; 0 for its status alone."""
        self._loop = loop
        self._limit_s = limit_s
        self._body_max = body_max
        self._server = server
        self._path = path
        self._answered = answered
        self._hosts = list(server.hosts)
        self._host = ""
        self._sock: socket.socket | None = None
        self._connecting: Connecting | None = None
        self._data = bytearray()
        self._answer: Answer | None = None
        self._is_over = False
        loop.after(limit_s, self._timed_out)
        loop.post(self._connect)

    def close(self) -> None:
        """End the probe without an answer."""
        self._is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None

    def _connect(self) -> None:
        if self._is_over:
            return
        self._host = self._hosts.pop(0)
        self._connecting = Connecting(self._loop, self._server, self._connected, self._host)

    def _connected(self, sock: socket.socket | None, reason: str) -> None:
        if self._is_over:
            if sock is not None:
                sock.close()
        elif sock is not None:
            self._send(sock)
        elif reason == REFUSED and self._hosts:
            # The loop first: this may still be the constructor of the attempt before.
            self._loop.post(self._connect)
        else:
            self._end(Answer(0, reason, Ready.REFUSED if reason == REFUSED else Ready.FAILING))

    def _send(self, sock: socket.socket) -> None:
        try:
            # A few bytes always fit the buffer of a new socket.
            version = "1.0" if self._body_max else "1.1"
            sock.send(request(self._path, self._server.name, version))
        except OSError as error:
            sock.close()
            self._end(Answer(0, str(error)))
            return
        self._sock = sock
        self._loop.watch(sock, self._readable)

    def _readable(self) -> None:
        if self._sock is None:
            return
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(Answer(0, str(error)))
            return
        self._data += data
        if self._answer is None:
            self._answer = self._read_status(is_over=not data)
        answer, size = self._answer, len(self._data)
        if answer is None:
            return
        if not self._body_max or not answer.status:
            self._end(answer)
        elif size > self._body_max:
            self._end(Answer(0, f"more than {self._body_max} bytes"))
        elif not data:
            self._end(replace(answer, whole=bytes(self._data)))

    def _read_status(self, *, is_over: bool) -> Answer | None:
        """Return the answer as far as its status, None if more bytes are needed for it."""
        answer = read_status(bytes(self._data[:HEAD_MAX]))
        if answer is None and is_over:
            return Answer(0, "the connection was closed without an answer")
        if answer is None and len(self._data) >= HEAD_MAX:
            return Answer(0, f"no final status within {HEAD_MAX} bytes")
        if answer is not None and answer.status and self._host:
            self._server.host = self._host
        return answer

    def _timed_out(self) -> None:
        is_connected = self._sock is not None
        what = "no answer" if is_connected else "no connection"
        self._end(Answer(0, f"{what} within {self._limit_s:g} s", Ready.SILENT))

    def _end(self, answer: Answer) -> None:
        if self._is_over:
            return
        if self._sock is not None:
            # What the server still sends is read as far as it has come, so that it gets no reset.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
                self._sock.recv(HEAD_MAX)
        self.close()
        self._answered(answer)
