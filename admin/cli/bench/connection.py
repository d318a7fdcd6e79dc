"""One keep-alive connection of a load: sends a request, recognises the end of its answer.

Answers are delimited by llhttp (RFC 9112: Content-Length, chunks, or the end of the connection).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final, cast

import httptools

from admin.cli.bench.load import OK, kind_of

READ: Final = 65_536
"""Max bytes per read; larger buffers are mapped anew by malloc for each read."""
HEAD_MAX: Final = 262_144
"""Max bytes of the heads of an answer, interim ones included."""
LOST: Final = "connection lost"
BAD: Final = "bad answer"
_LENGTH: Final = re.compile(rb"\r\n(?:content-length|transfer-encoding)\s*:", re.IGNORECASE)
_INTERIM: Final = re.compile(rb"HTTP/\d\.\d 1")
"""Beginning of an interim answer (RFC 9110, 15.2)."""
_END: Final = b"\r\n\r\n"
_BUFFER: Final = memoryview(bytearray(READ))
"""What any connection reads, until it has taken it, which is before the next read."""


class Connection(asyncio.BufferedProtocol):
    """One connection. `on_answer` receives the status of a complete answer; `on_loss` receives why
    the connection cannot be used any more. The generator sets the times of its call.

    `start_s`: the start that the latency is measured from; `deadline_s`: the time limit of the
    answer. `is_busy`: a call is on its way. `is_over`: it takes no further call.
    """

    def __init__(
        self,
        on_answer: Callable[[Connection, int], None],
        on_loss: Callable[[Connection, str], None],
        *,
        is_head: bool,
    ) -> None:
        self.start_s = self.deadline_s = 0.0
        self.is_busy = self.is_counted = False
        self._on_answer, self._on_loss, self._is_head = on_answer, on_loss, is_head
        self.is_over = False
        self._begun = self._last = b""
        """The reads until the head was complete, and the last read."""
        self._parser = httptools.HttpResponseParser(self)
        self._status = self._head_status = 0
        """Of the complete answer, and of its head; 0 before."""
        self._is_kept = False
        """The server keeps the connection open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Begin a call."""
        self.is_busy = True
        self._begun = b""
        self._status = self._head_status = 0
        self._is_kept = False
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection at once; nothing is reported any more."""
        self.is_over = True
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Return where the next bytes go."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes of the answer."""
        if self.is_over:
            return
        if not self.is_busy:
            self._lose(BAD)
            return
        self._last = bytes(_BUFFER[:nbytes])
        if not self._head_status:
            self._begun += self._last
        try:
            self._parser.feed_data(self._last)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._lose(BAD)
            return
        if status := self._head_status if self._is_head else self._status:
            self._complete(status)
        elif not self._head_status and len(self._begun) > HEAD_MAX:
            self._lose(BAD)

    def eof_received(self) -> None:
        """End an answer without a length, which ends with the connection. Any other answer is
        lost, and an idle connection takes no call from here on."""
        if self.is_busy and self._head_status and not self._has_length():
            self._complete(self._head_status)
        else:
            self._lose(LOST)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Report the end of the connection."""
        self._lose(LOST)

    def on_headers_complete(self) -> None:
        """Note the status, which llhttp reports here only. An interim answer is passed over."""
        status: int = self._parser.get_status_code()
        self._head_status = status if status >= OK else 0

    def on_message_complete(self) -> None:
        """Note the end; a second answer to one request ends the use of the connection. An interim
        answer says nothing about it."""
        is_first = bool(self._head_status and not self._status)
        self._is_kept = is_first and self._parser.should_keep_alive()
        self._status = self._status or self._head_status

    @property
    def is_reusable(self) -> bool:
        """Whether another call may be sent after this answer."""
        return self._is_kept and not (self._is_head or self._transport.get_write_buffer_size())

    def kind(self, status: int) -> str:
        """Return the name of an unexpected answer."""
        return kind_of(status, self._begun, self._last)

    def _has_length(self) -> bool:
        """Return whether the head says where the answer ends, which llhttp does not tell."""
        head, _, rest = self._begun.partition(_END)
        while _INTERIM.match(head):
            head, _, rest = rest.partition(_END)
        return _LENGTH.search(head) is not None

    def _complete(self, status: int) -> None:
        self.is_busy = False
        self._on_answer(self, status)

    def _lose(self, kind: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_loss(self, kind)
