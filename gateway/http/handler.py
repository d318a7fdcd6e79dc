"""aiohttp's handler of one connection, with further limits, and problem documents as answers.

It bounds the time and size of request heads, reads one request ahead at most, answers malformed
HTTP with a problem document, and answers clients that have closed their sending side.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Final

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from gateway import problems
from gateway.http.connections import ConnectionLimit, is_gone, may_be_reading
from gateway.http.reservations import BodyBudget, BodyReservation
from gateway.replies import Writer
from registry.errors import (
    BadRequest,
    BodyEvicted,
    FnError,
    HeadTimeout,
    HeadTooLarge,
    TooManyConnections,
)

HEAD_MAX: Final = 32 * 1024
"""Bytes of a request's head; aiohttp bounds only its lines and their number, to a mebibyte."""
READS_MAX: Final = 64
AHEAD_MAX: Final = 1024 * 1024
"""Reads, and bytes, of later requests. At either limit reading stops until the present answer is
out; meanwhile a client that leaves is not noticed."""
READ_SIZE: Final = 64 * 1024
"""Bytes. aiohttp stops reading a body from the socket when twice as many wait to be read."""


class HandlerFactory:
    """Makes the handlers of one site, and has their collaborators. `handlers`: those connected."""

    def __init__(
        self,
        server: web.Server,
        writer: Writer,
        body_budget: BodyBudget,
        head_read_s: float,
        limit: ConnectionLimit,
    ) -> None:
        self.server = server
        self.writer = writer
        self.body_budget = body_budget
        self.head_read_s = head_read_s
        self.handlers: set[ConnectionHandler] = set()
        self.limit = limit
        limit.track(self.handlers)
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> ConnectionHandler:
        """The handler of a new connection."""
        return ConnectionHandler(self, self._loop, is_new=True)

    def adopt(self) -> ConnectionHandler:
        """The handler of a connection that the fast path has accepted."""
        return ConnectionHandler(self, self._loop, is_new=False)

    def sweep(self) -> None:
        """Close connections that take too long; to be called once a second."""
        for handler in list(self.handlers):
            handler.tick()


class ConnectionHandler(RequestHandler):
    """One connection."""

    __slots__ = (
        "_ahead",
        "_answered",
        "_head_age_s",
        "_head_size",
        "_is_ended",
        "_is_new",
        "_last_body",
        "_reservation",
        "_shared",
        "opened_s",
        "quiet_s",
    )

    def __init__(
        self, shared: HandlerFactory, loop: asyncio.AbstractEventLoop, *, is_new: bool
    ) -> None:
        super().__init__(
            shared.server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type] # as web.AppRunner passes it on
            auto_decompress=False,
            read_bufsize=READ_SIZE,
        )
        self._shared = shared
        self._is_new = is_new
        self._is_ended = False
        self._answered = 0
        self._last_body: StreamReader | None = None
        self._ahead: list[bytes] = []
        self._reservation: BodyReservation | None = None
        self._head_size = 0
        self._head_age_s = 0
        self.quiet_s = 0
        self.opened_s = monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether every request that was read is answered."""
        return self._request_count == self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client came, or the fast path hands its connection over."""
        super().connection_made(transport)
        self._shared.handlers.add(self)
        if self._is_new and not self._shared.limit.admit(self):
            self._refuse(connection_refused())

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio's: the client is gone."""
        self._shared.handlers.discard(self)
        self._release()
        self._ahead.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came. aiohttp calls it with none, to go on with those it has."""
        self.quiet_s = 0
        if data and self._is_ahead():
            self._read_ahead(data)
            return
        count, body = self._request_count, self._last_body
        super().data_received(data)
        if self._request_count > count and body is not None and not body.is_eof():
            self._on_bad_chunks(body)
        elif self._request_count > count:
            if self._messages:
                self._last_body = self._messages[-1][1]
            self._is_new = False
            self._head_size = self._head_age_s = 0
            self._release()
        elif data and self.is_idle and self._is_body_whole():
            # Otherwise it is the rest of a refused body, which aiohttp drops for a while.
            self._head_grows(len(data))

    def eof_received(self) -> bool:  # type: ignore[override] # aiohttp's own never keeps it open
        """asyncio's: the client sends no more; True keeps the connection for the answer."""
        transport = self.transport
        if self.is_idle or transport is None or not self._is_body_whole() or self._is_http_1_0():
            return False
        self._is_ended = may_be_reading(transport)
        return self._is_ended

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """aiohttp's: write an answer. Then parse what was read ahead."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            self._parse_ahead()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002 - aiohttp's signature
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's: the answer to malformed HTTP, and to a defect; the connection ends."""
        error: FnError
        if isinstance(exc, HttpProcessingError):
            # The rest of the text quotes the client, whose bytes may be a key.
            reason = (message or "").partition("\n")[0].partition(":")[0].strip()
            error = BadRequest(f"the request is no HTTP: {reason[:200] or type(exc).__name__}")
            self.logger.warning("a request is no HTTP: %s", type(exc).__name__)
        else:
            error = FnError("see the server's log")
            self.logger.error("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        response = problems.answer(error, {"Server": "fngate"})
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp's: an error outside of a request. One while the rest of a body is drained is not
        logged: the body may be malformed or break off, and the client has its answer."""
        is_body = isinstance(kw.get("exc_info"), web.RequestPayloadError)
        if not is_body and self.transport is not None:
            super().log_exception(*args, **kw)

    def evict(self) -> None:
        """Close the connection, which is idle, to make room for another."""
        self.force_close()

    def tick(self) -> None:
        """One second has passed."""
        self.quiet_s += 1
        most_s = self._shared.head_read_s
        if self._is_ended and self.transport is not None and is_gone(self.transport):
            self.transport.abort()
        elif self._head_size:
            self._head_age_s += 1
            if self._head_age_s > most_s:
                self._refuse(HeadTimeout(f"the head did not arrive within {most_s:g} s"))
        elif self._is_new and self.quiet_s > most_s:
            self.force_close()

    def _on_bad_chunks(self, body: StreamReader) -> None:
        """The chunks of a body are malformed. aiohttp has queued an error as if it were the next
        request, and the reader of the body would wait for ever: raise the error there instead."""
        if self._messages:
            self._messages.pop()
            self._request_count -= 1
        body.set_exception(web.RequestPayloadError("\nits chunks cannot be read"))
        self.close()

    def _is_http_1_0(self) -> bool:
        """Whether a client of HTTP/1.0 waits: "100 Continue" would be an answer to it."""
        unanswered = [message for message, _ in self._messages]
        if self._current_request is not None:
            unanswered.append(self._current_request._message)
        return any(getattr(one, "version", HttpVersion11) < HttpVersion11 for one in unanswered)

    def _is_body_whole(self) -> bool:
        return self._last_body is None or self._last_body.is_eof()

    def _is_ahead(self) -> bool:
        """Whether bytes that come now belong to a request after the one being answered."""
        return not self.is_idle and not self._upgraded and self._is_body_whole()

    def _read_ahead(self, data: bytes) -> None:
        if self._close or self._force_close or self._is_ended:
            return
        try:
            self._reserve(len(data))
        except BodyEvicted as error:
            self._on_evicted(error)
            return
        self._ahead.append(data)
        size = 0 if self._reservation is None else self._reservation.bytes
        is_much = size >= AHEAD_MAX or len(self._ahead) >= READS_MAX
        if is_much and self.transport is not None:
            self.transport.pause_reading()

    def _parse_ahead(self) -> None:
        """Parse what was read ahead, now that its turn has come."""
        if self._ahead and self.is_idle:
            data = b"".join(self._ahead)
            self._ahead.clear()
            self._release()
            self.data_received(data)
            if not (self._reading_paused or self._buffer_paused or self._is_ended):
                self._resume_transport_reading()
        if self._is_ended and self.is_idle:
            self.close()

    def _head_grows(self, count: int) -> None:
        self._head_size += count
        if self._head_size > HEAD_MAX:
            text = f"expected a head of at most {HEAD_MAX} bytes, got {self._head_size} or more"
            self._refuse(HeadTooLarge(text))
            return
        try:
            self._reserve(count)
        except BodyEvicted as error:
            self._refuse(error)

    def _reserve(self, count: int) -> None:
        if self._reservation is None:
            self._reservation = self._shared.body_budget.open(self._on_evicted)
        self._reservation.grow(count)

    def _release(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _on_evicted(self, error: FnError) -> None:
        """The memory is needed: refuse a head that is not whole, or drop what was read ahead; then
        the connection ends after the present answer."""
        self._ahead.clear()
        if self.is_idle:
            self._refuse(error)
        else:
            self.close()

    def _refuse(self, error: FnError) -> None:
        """Answer without a request, and close."""
        if self.transport is not None and not self._force_close:
            for piece in self._shared.writer.pieces(problems.reply(error)):
                self.transport.write(piece)
        self._head_size = 0
        self.force_close()


def connection_refused() -> TooManyConnections:
    """The error that a connection beyond the limit gets."""
    text = "this server has as many connections as it can; idle ones were closed"
    return TooManyConnections(text, retry_after_s=1.0)
