"""One keep-alive connection of a load: sends a request, recognises the end of its answer.

Answers are delimited by llhttp (RFC 9112: Content-Length, chunks, or the end of the connection).
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import Final

import httptools

READ: Final = 65_536
"""Max bytes per read; larger buffers are mapped anew by malloc for each read."""
OK: Final = 200
MISTAKES: Final = 400
_CODE: Final = re.compile(rb'"code":\s*"([a-z0-9_]{1,64})"')
_LENGTH: Final = re.compile(rb"\r\n(?:content-length|transfer-encoding)\s*:", re.IGNORECASE)
_OURS: Final = b"urn:fngate:problem:"
"""Beginning of the type of a problem document of fngate."""
_LATER: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Broken(Exception):
    """The connection cannot be used any more; the text says what happened to the call."""


class _Answer:
    """Callbacks of httptools, and its parser. `status`: of the complete answer, else 0. `is_kept`:
    the server keeps the connection open. llhttp reports both only within a callback. Interim
    answers (RFC 9110, 15.2) are passed over."""

    __slots__ = ("head_status", "is_kept", "parser", "status")

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.clear()

    def clear(self) -> None:
        """Begin with the next answer."""
        self.status = self.head_status = 0
        self.is_kept = False

    def on_headers_complete(self) -> None:
        status: int = self.parser.get_status_code()
        self.head_status = status if status >= OK else 0

    def on_message_complete(self) -> None:
        # A second answer to one request ends the use of the connection.
        self.is_kept = not self.status and self.parser.should_keep_alive()
        self.status = self.status or self.head_status


class Connection:
    """One connection. The generator sets the times of its call.

    `start_s`: the start that the latency is measured from; `deadline_s`: the time limit of the
    answer. `is_busy`: a call is on its way. `calls`: ended calls.
    """

    __slots__ = (
        "_answer",
        "_first",
        "_is_head",
        "_is_spoilt",
        "_last",
        "_request",
        "_rest",
        "calls",
        "deadline_s",
        "fd",
        "is_busy",
        "is_counted",
        "sock",
        "start_s",
    )

    def __init__(self, sock: socket.socket, request: bytes, *, is_head: bool, calls: int) -> None:
        sock.setblocking(False)
        self.sock, self.fd = sock, sock.fileno()
        self.calls = calls
        self.start_s = self.deadline_s = 0.0
        self.is_busy = self.is_counted = False
        self._request, self._is_head, self._is_spoilt = request, is_head, False
        self._rest = memoryview(b"")
        self._first = self._last = b""
        self._answer = _Answer()

    def send(self) -> bool:
        """Begin to send the request; return whether it is sent, else call `send_rest` later.

        Raises Broken.
        """
        self.is_busy = True
        self._first = b""
        self._answer.clear()
        try:
            count = self.sock.send(self._request)
        except _LATER:
            count = 0
        except OSError as error:
            raise Broken("connection lost") from error
        if count == len(self._request):
            return True
        self._rest = memoryview(self._request)[count:]
        return False

    def send_rest(self) -> bool:
        """Go on sending; return whether the request is sent.

        A server that has refused the request may have closed the connection: its answer can still
        be read, so that a failure is not reported here.
        """
        try:
            while self._rest:
                self._rest = self._rest[self.sock.send(self._rest) :]
        except _LATER:
            return False
        except OSError:
            self._rest, self._is_spoilt = memoryview(b""), True
        return True

    def receive(self) -> int:
        """Read what has arrived; return the status of a complete answer, else 0. Raises Broken."""
        while True:
            try:
                data = self.sock.recv(READ)
            except _LATER:
                return 0
            except OSError as error:
                raise Broken("connection lost") from error
            status = self._parsed(data) if data else self._ended()
            # A TLS socket may hold decrypted bytes that wake no epoll.
            if status or not isinstance(self.sock, ssl.SSLSocket) or not self.sock.pending():
                return status

    def _parsed(self, data: bytes) -> int:
        if not self.is_busy:
            raise Broken("bad answer")
        self._first, self._last = self._first or data, data
        answer = self._answer
        try:
            self._answer.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise Broken("bad answer") from error
        status = answer.head_status if self._is_head else answer.status
        return self._completed(status) if status else 0

    def _ended(self) -> int:
        """Handle the end of the connection, which ends an answer without a length."""
        head = self._first.partition(b"\r\n\r\n")[0]
        status = self._answer.head_status
        if self.is_busy and status and not _LENGTH.search(head):
            return self._completed(status)
        raise Broken("connection lost")

    def _completed(self, status: int) -> int:
        self.is_busy = False
        self.calls += 1
        return status

    @property
    def is_reusable(self) -> bool:
        """Whether another call may be sent after this answer."""
        return self._answer.is_kept and not (self._rest or self._is_spoilt or self._is_head)

    def kind(self, status: int) -> str:
        """Return the name of an unexpected answer: its status, and fngate's code if it has one."""
        for part in (self._first, self._last):
            if status >= MISTAKES and _OURS in part and (found := _CODE.search(part)):
                return f"{status} {found[1].decode()}"
        return str(status)
