"""aiohttp's connection handler, with additional limits and problem documents as answers.

It bounds the time and size of request heads, reads ahead up to a limit, answers malformed HTTP with
a problem document, and answers clients that have closed their sending side.
"""

from __future__ import annotations

import asyncio
import re
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from gateway import problems
from gateway.http.connections import ConnectionLimit, begin_answer, is_gone
from gateway.http.reservations import BodyBudget, BodyReservation
from gateway.oip import shapes
from gateway.oip.shapes import LINE_MAX, is_protocols
from gateway.proxy.request_head import HEAD_MAX
from gateway.replies import Writer
from gateway.unsent import UnsentBuffer
from registry.errors import (
    BadRequest,
    BodyEvicted,
    FnError,
    HeadTimeout,
    HeadTooLarge,
    TooManyConnections,
)

if TYPE_CHECKING:
    from gateway.http.exchange_route import RoutedClient

FIELDS_MAX: Final = 128
"""Max fields of a request's head."""
READS_MAX: Final = 64
AHEAD_MAX: Final = 1024 * 1024
"""Max reads, and max bytes, of later requests. At either limit reading stops until the current
answer is sent; meanwhile only `tick` detects a client that disconnects, if by a reset."""
_UPGRADE: Final = re.compile(rb"\n[Uu][Pp][Gg][Rr][Aa][Dd][Ee]")
_UPGRADE_BYTES: Final = 8
_END: Final = b"\r\n\r\n"
"""End of a head, and of a body in chunks (RFC 9112, sections 2.1 and 7.1)."""
READ_SIZE: Final = 64 * 1024
"""Bytes. aiohttp stops reading a body from the socket while twice as many are buffered."""


class HandlerFactory:
    """Creates the handlers of one site and holds their collaborators.

    `handlers`: the handlers of open connections.
    """

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
        """Return the handler of a new connection."""
        return ConnectionHandler(self, self._loop, is_new=True)

    def adopt(self) -> ConnectionHandler:
        """Return the handler of a connection that the fast path hands over."""
        return ConnectionHandler(self, self._loop, is_new=False)

    def sweep(self) -> None:
        """Close connections that exceed a time limit; to be called once a second."""
        for handler in list(self.handlers):
            handler.tick()


class ConnectionHandler(RequestHandler):
    """Handler of one connection."""

    __slots__ = (
        "_ahead",
        "_answered",
        "_begun",
        "_edge",
        "_head_age_s",
        "_head_size",
        "_is_ended",
        "_is_new",
        "_last_body",
        "_last_head",
        "_may_upgrade",
        "_reservation",
        "_shared",
        "_unsent",
        "exchange",
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
            max_line_size=HEAD_MAX,
            max_field_size=HEAD_MAX,
            max_headers=FIELDS_MAX,
            read_bufsize=READ_SIZE,
        )
        self._shared = shared
        self._is_new = is_new
        self._is_ended = False
        self._answered = 0
        self._last_body: StreamReader | None = None
        self._last_head: RawRequestMessage | None = None
        self._edge = b""
        """Last bytes that were parsed: a field's name may be cut between two reads."""
        self._may_upgrade = False
        """Whether the request that is being parsed may have the field Upgrade."""
        self._ahead: list[bytes] = []
        self._reservation: BodyReservation | None = None
        self._unsent = UnsentBuffer(shared.body_budget.answers)
        self._head_size = 0
        self._head_age_s = 0
        self._begun = b""
        self.exchange: RoutedClient | None = None
        """Owner of the connection's bytes, if the current request is an exchange."""
        self.quiet_s = 0
        self.opened_s = monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether every parsed request is answered, and the client takes the answers."""
        return self._is_answered and not self.writing_paused

    @property
    def _is_answered(self) -> bool:
        return self._request_count == self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept or refuse a new connection, or take one over from the fast path (asyncio)."""
        super().connection_made(transport)
        self._shared.handlers.add(self)
        self._unsent.watch(cast("asyncio.Transport", transport))
        if self._is_new and not self._shared.limit.admit(self):
            self._refuse(connection_refused())

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release everything: the client has disconnected (asyncio)."""
        self._shared.handlers.discard(self)
        self._unsent.close()
        self._release()
        self._ahead.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes (asyncio). aiohttp passes b"" to continue with buffered ones."""
        self.quiet_s = 0
        if data and self.exchange is not None and self.exchange.received(data):
            return
        if not data:
            self._parse(data)
        at = 0
        while at < len(data):
            # Bytes of a request after the one being answered.
            if not self._is_answered and self._is_body_whole():
                self._read_ahead(data[at:])
                return
            end = self._safe_end(data, at)
            self._parse(data[at:end])
            at = end

    def _safe_end(self, data: bytes, at: int) -> int:
        """Return the end of the bytes of `data`, from `at` on, that are parsed at once.

        With a request whose upgrade it does not know, aiohttp's parser loses what follows in the
        same bytes. So they end where such a request may end: with its head, with a body of known
        length, or with a body in chunks.
        """
        left, edge = self._body_left(), self._edge
        if left >= len(data) - at:
            return len(data)
        end, whole = len(data), 0
        if not self._may_upgrade:
            across = _UPGRADE.search(edge + data[at : at + _UPGRADE_BYTES])
            found = across or _UPGRADE.search(data, at)
            self._may_upgrade = found is not None
            # What ends before the head with the offer is parsed as ever.
            whole = 0 if across or not found else data.rfind(_END, at, found.start() + 1) + 1
        if whole:
            end = whole - 1 + len(_END)
        elif self._may_upgrade and left:
            end = at + left
        elif self._may_upgrade:
            begun = edge[-len(_END) + 1 :]
            across_at = (begun + data[at : at + len(_END) - 1]).find(_END)
            found_at = data.find(_END, at)
            if across_at >= 0:
                end = at + across_at - len(begun) + len(_END)
            elif found_at >= 0:
                end = found_at + len(_END)
        self._edge = (edge + data[max(at, end - _UPGRADE_BYTES) : end])[-_UPGRADE_BYTES:]
        return end

    def _body_left(self) -> int:
        """Return how many bytes of a body with Content-Length are still to come."""
        if self._last_body is None or self._last_body.is_eof() or self._last_head is None:
            return 0
        length = int(self._last_head.headers.get("Content-Length", 0))
        return max(length - self._last_body.total_bytes, 0)

    def _parse(self, data: bytes) -> None:
        """Let aiohttp parse bytes, and account for what comes of it."""
        count, body = self._request_count, self._last_body
        was_whole = self._is_body_whole()
        if data and self._is_answered and was_whole and len(self._begun) < LINE_MAX:
            self._begun += data[:LINE_MAX]
        super().data_received(data)
        if self._upgraded and self._is_answered and self._parser is not None:
            # Declined before the body had arrived, which is when aiohttp would go on.
            self._parser.set_upgraded(False)
            self._upgraded = False
        if self._request_count > count and body is not None and not body.is_eof():
            self._on_bad_chunks(body)
        elif self._request_count > count:
            if self._messages:
                head, self._last_body = self._messages[-1]
                self._last_head = head if isinstance(head, RawRequestMessage) else None
                self._may_upgrade = self._last_head is not None and bool(self._last_head.upgrade)
            self._is_new = False
            self._head_size = self._head_age_s = 0
            self._release()
        elif data and self._is_answered and was_whole:
            # Otherwise these bytes belong to a refused body, which aiohttp discards for a while.
            # The read that completes it belongs to it as well.
            self._head_grows(len(data))

    def eof_received(self) -> bool:  # type: ignore[override] # aiohttp's own never keeps it open
        """Handle the client's end of sending (asyncio).

        Returns True to keep the connection open for the pending answer.
        """
        if self.exchange is not None:
            stays = self.exchange.ended()
            if stays is not None:
                return stays
        transport = self.transport
        if self._is_answered or transport is None or not self._is_body_whole():
            return False
        if not self._has_begun():
            begun = begin_answer(transport)
            if begun is None:
                return False
            self.transport = begun
        self._is_ended = True
        return True

    def pause_writing(self) -> None:
        """Stop the answer: the client has not taken all of it (asyncio)."""
        super().pause_writing()
        self._unsent.pause(may_pause=self.exchange is not None)
        if self.exchange is not None:
            self.exchange.paused()

    def resume_writing(self) -> None:
        """Continue the answer (asyncio)."""
        super().resume_writing()
        self._unsent.close()
        if self.exchange is not None:
            self.exchange.resumed()

    def take_tail(self) -> bytes:
        """Return the bytes that followed an upgrade's head, and forget them."""
        tail = b"".join(self._ahead)
        self._ahead.clear()
        self._release()
        self._resume_transport_reading()
        return tail

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write an answer (aiohttp), then parse what was read ahead."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            self._begun = b""
            self._parse_ahead()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002 - aiohttp's signature
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to malformed HTTP, or to a defect; the connection closes (aiohttp)."""
        error: FnError
        if isinstance(exc, HttpProcessingError):
            error = _explain(exc, message or "")
            self.logger.warning("a request is no HTTP: %s", type(exc).__name__)
        else:
            error = FnError("see the server's log")
            self.logger.error("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        response = problems.response_of(self._shape()(error))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error outside of a request (aiohttp).

        Errors while the rest of a body is discarded are not logged: the body may be malformed or
        truncated, and the client has its answer.
        """
        is_body = isinstance(kw.get("exc_info"), web.RequestPayloadError)
        if not is_body and self.transport is not None:
            super().log_exception(*args, **kw)

    def abort(self) -> None:
        """Close the connection at once, discarding unsent answers."""
        if self.transport is not None:
            self.transport.abort()

    def tick(self) -> None:
        """Count one second; refuse a head or close a connection that takes too long."""
        self.quiet_s += 1
        most_s = self._shared.head_read_s
        transport = self.transport
        is_deaf = transport is not None and (self._is_ended or not transport.is_reading())
        if transport is not None and is_deaf and is_gone(transport):
            transport.abort()
        elif self._head_size:
            self._head_age_s += 1
            if self._head_age_s > most_s:
                self._refuse(HeadTimeout(f"the head did not arrive within {most_s:g} s"))
        elif self._is_new and self.quiet_s > most_s:
            self.force_close()

    def _on_bad_chunks(self, body: StreamReader) -> None:
        """Fail the reader of a body whose chunks are malformed.

        aiohttp has queued an error as if it were the next request, and the body's reader would
        never end.
        """
        if self._messages:
            self._messages.pop()
            self._request_count -= 1
        body.set_exception(web.RequestPayloadError("\nits chunks cannot be read"))
        self.close()

    def _has_begun(self) -> bool:
        """Return whether bytes of an answer are written."""
        request = self._current_request
        return request is not None and request.writer.output_size > 0

    def _is_body_whole(self) -> bool:
        return self._last_body is None or self._last_body.is_eof()

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
        """Parse what was read ahead, once the current request is answered."""
        if self._ahead and self._is_answered:
            data = b"".join(self._ahead)
            self._ahead.clear()
            self._release()
            self.data_received(data)
            if not (self._reading_paused or self._buffer_paused or self._is_ended):
                self._resume_transport_reading()
        if self._is_ended and self._is_answered:
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
        """Refuse an incomplete head, or drop what was read ahead: its memory is needed.

        In the second case the connection closes after the current answer.
        """
        self._ahead.clear()
        if self._is_answered:
            self._refuse(error)
        else:
            self.close()

    def _refuse(self, error: FnError) -> None:
        """Send an error without a request, and close."""
        if self.transport is not None and not self._force_close:
            for piece in self._shared.writer.pieces(self._shape()(error)):
                self.transport.write(piece)
        self._head_size = 0
        self.force_close()

    def _shape(self) -> problems.ErrorShape:
        """Return the form of errors that the client of an unparsed head expects."""
        return shapes.reply if is_protocols(self._begun) else problems.reply


def _explain(error: HttpProcessingError, message: str) -> FnError:
    """Return the problem with a head that aiohttp's parser has refused."""
    if isinstance(error, LineTooLong):
        return HeadTooLarge(f"expected a head of at most {HEAD_MAX} bytes, got a longer line")
    if message.startswith("Too many headers"):
        return HeadTooLarge(f"expected at most {FIELDS_MAX} fields, got more")
    # The rest of the text quotes the client's bytes, which may contain a key.
    reason = message.partition("\n")[0].partition(":")[0].strip()
    return BadRequest(f"the request is not HTTP: {reason[:200] or type(error).__name__}")


def connection_refused() -> TooManyConnections:
    """Return the error for a connection beyond the limit."""
    text = "the server has reached its limit of connections, and none of them is idle"
    # Whether the client would have read the Open Inference Protocol's form is not known yet.
    return TooManyConnections(text, retry_after_s=1.0, detail={"error": text})
