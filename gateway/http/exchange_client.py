"""Client side of exchanges on the connections of the fast path.

An `ExchangeClient` owns the connection's bytes during one exchange: it reads the request's head and
body, and writes the answer. Then the fast path's `Connection` reads the next head.
"""

from __future__ import annotations

import asyncio
import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway import problems
from gateway.http.connections import begin_answer, is_gone
from gateway.http.exchanges import Exchanges
from gateway.http.head_memory import HeadMemory
from gateway.http.known_heads import KnownHead
from gateway.http.models.router import ModelRequests
from gateway.pages.entering import is_ours
from gateway.proxy.fields import Malformed, find_head_end
from gateway.proxy.framing import BodyFramer, BodyKind, LengthBody, make_framer
from gateway.proxy.request_head import HEAD_MAX, parse_request_head
from gateway.proxy.targets import DOCUMENT, is_description, split_target
from gateway.replies import Reply
from gateway.unsent import reset
from gateway.v1.endpoints import is_model_request
from registry.errors import BadRequest, BodyEvicted, FnError, HeadTimeout, HeadTooLarge, Unknown

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from gateway.http.fast_path import Connection
    from gateway.http.head_memory import KnownRequest
    from gateway.http.reservations import BodyBudget, BodyReservation
    from gateway.proxy.framing import Framing
    from gateway.proxy.ports import ClientExchange, ClientSide
    from gateway.proxy.request_head import RequestHead
    from gateway.replies import Writer

AHEAD_MAX: Final = 64 * 1024
"""Bytes of later requests at which reading stops until the exchange is over."""
CUT_S: Final = 2.0
"""Seconds that a client has to read the rest of an incomplete answer."""
_END: Final = b"\r\n\r\n"
_INTERIM: Final = b"HTTP/1.1 10"
_LINE: Final = re.compile(rb"([!-~]+) (/[!-~]*) HTTP/1\.[01]\r\n")
_NO_BODY: Final = LengthBody(0)


class State(Enum):
    """What the bytes of the client belong to."""

    HEAD = auto()
    """The request's head."""
    BODY = auto()
    """Its body."""
    WHOLE = auto()
    """The next request."""
    TUNNEL = auto()
    """A WebSocket."""


def is_for_server(data: bytes, exchanges: Exchanges) -> bool:
    """Return whether `data` begins with a complete request line for a function's server.

    On a function's own host every target is its server's, but the gateway's own; elsewhere those
    below /fn/.
    """
    line = _LINE.match(data)
    if line is None:
        return False
    if exchanges.page_of(data) is not None:
        return not is_ours(line[2])
    if is_model_request(line[1], line[2]):
        return True
    try:
        target = split_target(line[2])
    except BadRequest:
        return False
    if target is None or is_description(line[1], target):
        return False
    # Below the name there is little but servers; who may know whether it exists is checked later.
    if target.path == DOCUMENT:
        return exchanges.has_document(target.ref)
    return target.path != b"" or exchanges.is_server(target.ref)


class ExchangeParts(NamedTuple):
    """What all connections of one gateway process share."""

    heads: HeadMemory
    exchanges: Exchanges
    models: ModelRequests
    writer: Writer
    budget: BodyBudget

    def begin(
        self, head: RequestHead, client: ClientSide, peer: bytes, raw: bytes = b""
    ) -> ClientExchange | None:
        """Begin the exchange of a request, as `Exchanges.begin`. Raises FnError where the target is
        of neither a function nor a model."""
        target = self.exchanges.target_of(head)
        if target is not None:
            return self.exchanges.begin(head, target, client, peer, raw)
        if not is_model_request(head.method, head.target):
            path = head.target[:200].decode("latin-1")
            raise Unknown(f"no route {head.method.decode()} {path}")
        return self.models.begin(head, client, peer, raw)

    def begin_known(
        self, request: KnownRequest, client: ClientSide, peer: bytes
    ) -> ClientExchange | None:
        """Begin the exchange of a request with a known head, as `begin`."""
        known, cut = request
        if isinstance(known, KnownHead):
            return self.exchanges.begin_known(known, cut, client)
        return self.models.begin_known(known, cut, client, peer)


def make_parts(invoker: Invoker, writer: Writer) -> ExchangeParts:
    """Return what all connections of one gateway process share: to be called once."""
    heads = HeadMemory(invoker.catalog, invoker.access.callers)
    exchanges = Exchanges(invoker, heads)
    models = ModelRequests(exchanges, invoker, heads)
    return ExchangeParts(heads, exchanges, models, writer, invoker.body_budget)


class ExchangeClient:
    """Client side of one exchange, as `gateway.proxy.ports.ClientSide`.

    The fast path's connection passes the transport's events on: to exchange the transport's
    protocol would take longer.
    """

    def __init__(
        self, shared: ExchangeParts, owner: Connection, transport: asyncio.Transport
    ) -> None:
        self._shared = shared
        self._owner = owner
        self._transport = transport
        self._state = State.HEAD
        self._head: bytes | bytearray = b""
        self._head_age_s = 0
        self._method = b""
        self._framer: BodyFramer = _NO_BODY
        self._exchange: ClientExchange | None = None
        self._ahead: bytes | bytearray = b""
        self._reservation: BodyReservation | None = None
        self._has_answer = False
        self._is_paused = self._is_full = self._is_closed_by_client = False

    # Events of the transport

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        state, exchange = self._state, self._exchange
        if state is State.HEAD:
            self._read_head(data)
        elif state is State.WHOLE:
            self._read_ahead(data)
        elif exchange is not None and state is State.BODY:
            self._read_body(exchange, data)
        elif exchange is not None:
            exchange.request_data(data)

    def eof_received(self) -> bool:
        """Handle the client's end of sending.

        Returns True to keep the connection open for the answer. A client that ends its sending
        after the answer began has left: nothing else would tell for a silent stream.
        """
        if self._state is State.TUNNEL and self._exchange is not None:
            self._exchange.client_eof()
            return True
        waits = self._state is State.WHOLE and not self._has_answer
        begun = begin_answer(self._transport) if waits else None
        if begun is None:
            return False
        self._transport = begun
        self._is_closed_by_client = True
        return True

    def connection_lost(self) -> None:
        """End the exchange: the client has left."""
        self._forget_ahead()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_lost()

    def pause_writing(self) -> None:
        """Stop the answer: the client does not read it."""
        self._is_full = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def resume_writing(self) -> None:
        """Continue the answer."""
        self._is_full = False
        if self._exchange is not None:
            self._exchange.client_resumed()

    # The fast path

    def count_second(self, head_read_s: float) -> None:
        """Count one second; refuse a head that takes too long."""
        if self._state is State.HEAD:
            self._head_age_s += 1
            if self._head_age_s > head_read_s:
                text = f"the head did not arrive within {head_read_s:g} s"
                self._refuse_head(HeadTimeout(text))

    # ClientSide

    def write(self, data: bytes) -> None:
        """Implement `ClientSide.write`."""
        if not self._has_answer:
            self._has_answer = begins_answer(data)
        self._transport.write(data)

    def pause_body(self) -> None:
        """Implement `ClientSide.pause_body`."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_body(self) -> None:
        """Implement `ClientSide.resume_body`."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def answer(self, reply: Reply) -> None:
        """Implement `ClientSide.answer`."""
        for piece in reply_pieces(self._shared.writer, reply, self._method):
            self.write(piece)

    def begin_tunnel(self) -> None:
        """Implement `ClientSide.begin_tunnel`."""
        self._state = State.TUNNEL
        ahead = bytes(self._ahead)
        self._forget_ahead()
        self.resume_body()
        if ahead and self._exchange is not None:
            self._exchange.request_data(ahead)
        if self._is_closed_by_client and self._exchange is not None:
            self._exchange.client_eof()

    def write_eof(self) -> None:
        """Implement `ClientSide.write_eof`."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def finish(self, *, keep: bool) -> None:
        """Implement `ClientSide.finish`."""
        self._exchange = None
        transport = self._transport
        ahead = bytes(self._ahead)
        self._forget_ahead()
        if transport.is_closing():
            return
        if keep and not self._is_closed_by_client:
            self._owner.take_back(ahead, is_paused=self._is_paused)
        elif self._state is State.BODY:
            self._owner.discard_rest()
        else:
            transport.close()

    def cut(self, *, resets: bool) -> None:
        """Implement `ClientSide.cut`."""
        self._exchange = None
        cut(self._transport, resets=resets)

    def tick(self) -> bool:
        """Implement `ClientSide.tick`."""
        # Otherwise asyncio reports the end of the connection by itself.
        if self._is_paused or self._is_closed_by_client:
            return not is_gone(self._transport)
        return True

    # The request

    def _read_head(self, data: bytes) -> None:
        """Read the request's head; begin the exchange when it is complete."""
        end = self._find_head_end(data)
        if end < 0:
            return
        raw, rest = bytes(self._head[:end]), bytes(self._head[end:])
        self._head = b""
        self._forget_ahead()
        self._method = raw.partition(b" ")[0]
        try:
            head = parse_request_head(raw)
            self._expect_body(head.framing, rest)
            exchange = self._shared.begin(head, self, self._owner.peer, raw)
        except FnError as error:
            self._refuse_head(error, raw)
            return
        self._start(exchange, rest)

    def begin_known(self, request: KnownRequest, rest: bytes) -> None:
        """Begin an exchange with a known head; `rest` is what follows the head."""
        known, cut = request
        self._method = known.method.encode()
        if 0 < cut.length == len(rest):
            self._state = State.WHOLE
        else:
            self._expect_body(known.framing(cut), rest)
        self._start(self._shared.begin_known(request, self, self._owner.peer), rest)

    def _expect_body(self, framing: Framing, rest: bytes) -> None:
        """Expect the body of a request, which `rest` begins or is.

        Without a body, `rest` belongs to the next request. That is not lost if this one is refused.
        """
        if framing.is_empty:
            self._state = State.WHOLE
            self._ahead = bytearray(rest)
        elif framing.kind is BodyKind.LENGTH and framing.length == len(rest):
            self._state = State.WHOLE
        else:
            self._state = State.BODY
            self._framer = make_framer(framing)

    def _start(self, exchange: ClientExchange | None, rest: bytes) -> None:
        """Start the exchange, None if it was answered already; `rest` is what follows its head."""
        if exchange is None:
            return
        self._exchange = exchange
        if self._is_full:
            exchange.client_paused()
        if self._ahead:
            self._ahead = b""
            self._read_ahead(rest)  # again, and counted
        elif rest and self._state is State.WHOLE:
            exchange.request_whole(rest)
        elif rest:
            self._read_body(exchange, rest)
        if not exchange.is_over:
            exchange.start()

    def _find_head_end(self, data: bytes) -> int:
        """Add bytes of the head; return the index of its end, -1 if it is not there yet."""
        begun = len(self._head)
        if not begun:
            self._head = bytearray()
        self._head += data
        try:
            end = find_head_end(self._head, begun)
        except Malformed as error:
            self._refuse_head(BadRequest(str(error)))
            return -1
        if end < 0 and len(self._head) > HEAD_MAX:
            text = f"expected a head of at most {HEAD_MAX} bytes, got {len(self._head)} or more"
            self._refuse_head(HeadTooLarge(text))
        elif end < 0:
            self._count(len(data))
        return end

    def _read_body(self, exchange: ClientExchange, data: bytes) -> None:
        """Pass on bytes of the body."""
        framer = self._framer
        try:
            count = framer.feed(data)
        except Malformed as error:
            exchange.fail(BadRequest(f"the body cannot be read: {error}"))
            return
        if framer.is_complete:
            self._state = State.WHOLE
            # Before the last bytes, so that an answer to them finds a complete request.
            exchange.request_data(data[:count])
            exchange.request_end()
            if count < len(data):
                self._read_ahead(data[count:])
        else:
            exchange.request_data(data)

    def _read_ahead(self, data: bytes) -> None:
        """Keep bytes of the next request.

        Reading continues up to a limit, because only a read detects that the client disconnects.
        """
        if not self._ahead:
            self._ahead = bytearray()
        self._ahead += data
        self._count(len(data))
        if len(self._ahead) >= AHEAD_MAX:
            self.pause_body()

    def _count(self, count: int) -> None:
        """Count bytes of a head, or of a later request, in the memory for bodies."""
        if self._reservation is None:
            self._reservation = self._shared.budget.open(self._on_evicted)
        try:
            self._reservation.grow(count)
        except BodyEvicted as error:
            self._on_evicted(error)

    def _on_evicted(self, error: FnError) -> None:
        """Refuse the head, or drop what was read ahead: its memory is needed."""
        self._reservation = None
        if self._state is State.HEAD:
            self._refuse_head(error)
        else:
            self._ahead = b""
            self._is_closed_by_client = True  # the connection closes after this answer

    def _refuse_head(self, error: FnError, raw: bytes = b"") -> None:
        """Answer a head that is no request, and close. `raw`: the head if it was complete."""
        line = (raw or self._head).partition(b"\r")[0]
        self._head = b""
        self._forget_ahead()
        reply = self._shared.models.refusal(bytes(line), error) or problems.reply(error)
        self.answer(reply.closing())
        self._owner.discard_rest()

    def _forget_ahead(self) -> None:
        self._ahead = b""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None


def begins_answer(data: bytes) -> bool:
    """Return whether the first bytes of a write are an answer's, not an interim head's."""
    return not data.startswith(_INTERIM)


def reply_pieces(writer: Writer, reply: Reply, method: bytes) -> list[bytes]:
    """Return the bytes of a reply; the answer to HEAD has no body."""
    pieces = [bytes(piece) for piece in writer.pieces(reply)]
    if method == b"HEAD":
        return [pieces[0].partition(_END)[0] + _END]
    return pieces


def cut(transport: asyncio.Transport, *, resets: bool) -> None:
    """Close a connection so that its client sees an incomplete answer.

    `resets`: by a reset, because the answer ends with the connection.
    """
    if resets:
        reset(transport)
        return
    transport.close()
    if transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(CUT_S, transport.abort)
