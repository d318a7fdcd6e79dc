"""Client side of exchanges whose requests aiohttp has read.

The answer is written to the connection as it is, not by aiohttp; the connection then closes. The
body comes from aiohttp without its chunk framing, and so without trailers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from aiohttp import web

from gateway import problems
from gateway.http.connections import is_gone, peer_of
from gateway.http.exchange_client import begins_answer, cut, reply_pieces
from gateway.http.handler import ConnectionHandler
from gateway.proxy.framing import LAST_CHUNK, BodyKind, encode_chunk
from gateway.proxy.request_head import RequestHead, parse_request_head
from gateway.proxy.websocket import is_handshake
from registry.errors import BadRequest, FnError

if TYPE_CHECKING:
    from gateway.http.exchange_client import ExchangeParts
    from gateway.proxy.ports import ClientExchange
    from gateway.replies import Reply, Writer


def asks_for_websocket(request: web.BaseRequest) -> bool:
    """Return whether a request is the opening handshake of a WebSocket."""
    try:
        return is_handshake(_read_head(request))
    except FnError:
        return False  # whoever answers it says why


async def proxy(parts: ExchangeParts, request: web.BaseRequest) -> web.StreamResponse:
    """Answer a request to a function's server, or to /v1. The connection closes afterwards."""
    try:
        head = _read_head(request)
        client = RoutedClient(request, parts.writer, head)
        exchange = parts.begin(head, client, peer_of(request.transport))
    except FnError as error:
        line = f"{request.method} {request.rel_url.raw_path} ".encode("utf-8", "replace")
        reply = parts.models.refusal(line, error) or problems.reply(error)
        response = problems.response_of(reply)
        response.force_close()
        return response
    await client.run(exchange)
    return SentResponse()


def _read_head(request: web.BaseRequest) -> RequestHead:
    """Return the head as the fast path would have read it. Raises FnError."""
    message = request._message
    lines = [
        b"%b %b HTTP/%d.%d"
        % (
            message.method.encode("utf-8", "surrogateescape"),
            message.path.encode("utf-8", "surrogateescape"),
            *message.version,
        ),
        *(b"%b: %b" % field for field in message.raw_headers),
        b"\r\n",
    ]
    return parse_request_head(b"\r\n".join(lines))._replace(keep_alive=False)


class RoutedClient:
    """Client side of one exchange, as `gateway.proxy.ports.ClientSide`."""

    def __init__(self, request: web.BaseRequest, writer: Writer, head: RequestHead) -> None:
        self._request = request
        self._writer = writer
        self._head = head
        self._handler = cast("ConnectionHandler", request.protocol)
        self._exchange: ClientExchange | None = None
        self._is_over = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._has_answer = self._is_tunnel = False

    async def run(self, exchange: ClientExchange | None) -> None:
        """Run the exchange to its end; None if the request is answered already."""
        if exchange is None:
            return
        self._exchange = exchange
        self._handler.exchange = self
        if self._handler.writing_paused:
            exchange.client_paused()
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read_body(exchange))
                exchange.start()
                await self._is_over.wait()
                reading.cancel()
        finally:
            self._handler.exchange = None
            exchange.client_lost()  # does nothing if the exchange has ended

    async def _read_body(self, exchange: ClientExchange) -> None:
        """Pass the request's body on, in the framing of the client's head."""
        if exchange.is_request_whole:
            return
        content = self._request.content
        is_chunked = self._head.framing.kind is BodyKind.CHUNKED
        try:
            while not content.at_eof():
                piece = await content.readany()
                if piece:
                    exchange.request_data(encode_chunk(piece) if is_chunked else piece)
                await self._may_read.wait()
        except web.RequestPayloadError as error:
            reason = str(error).partition("\n")[2].strip() or "it is truncated"
            exchange.fail(BadRequest(f"the body cannot be read: {reason[:200]}"))
            return
        except OSError:
            return  # the client has left: aiohttp cancels the request
        if is_chunked:
            exchange.request_data(LAST_CHUNK)
        exchange.request_end()

    # Events of the connection's handler

    def paused(self) -> None:
        """Stop the answer: the client does not read it."""
        if self._exchange is not None:
            self._exchange.client_paused()

    def resumed(self) -> None:
        """Continue the answer."""
        if self._exchange is not None:
            self._exchange.client_resumed()

    def received(self, data: bytes) -> bool:
        """Return whether bytes of the client belong to a tunnel, which then has them."""
        if not self._is_tunnel or self._exchange is None:
            return False
        self._exchange.request_data(data)
        return True

    def ended(self) -> bool | None:
        """Return whether the connection stays open although the client has ended its sending.

        None: as for every other request.
        """
        if self._is_tunnel and self._exchange is not None:
            self._exchange.client_eof()
            return True
        return False if self._has_answer else None

    # ClientSide

    def write(self, data: bytes) -> None:
        """Implement `ClientSide.write`."""
        if not self._has_answer:
            self._has_answer = begins_answer(data)
        if self._handler.transport is not None:
            self._handler.transport.write(data)

    def pause_body(self) -> None:
        """Implement `ClientSide.pause_body`."""
        self._may_read.clear()
        if self._is_tunnel:
            self._handler._pause_transport_reading()

    def resume_body(self) -> None:
        """Implement `ClientSide.resume_body`."""
        self._may_read.set()
        if self._is_tunnel:
            self._handler._resume_transport_reading()

    def answer(self, reply: Reply) -> None:
        """Implement `ClientSide.answer`."""
        for piece in reply_pieces(self._writer, reply, self._head.method):
            self.write(piece)

    def begin_tunnel(self) -> None:
        """Implement `ClientSide.begin_tunnel`."""
        self._is_tunnel = True
        ahead = self._handler.take_tail()
        if ahead:
            self.received(ahead)

    def write_eof(self) -> None:
        """Implement `ClientSide.write_eof`."""
        transport = self._handler.transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()

    def finish(self, *, keep: bool) -> None:  # noqa: ARG002 - the connection closes always
        """Implement `ClientSide.finish`. aiohttp discards the rest of the body, and closes."""
        self._exchange = None
        self._is_over.set()

    def cut(self, *, resets: bool) -> None:
        """Implement `ClientSide.cut`."""
        self._exchange = None
        if self._handler.transport is not None:
            cut(self._handler.transport, resets=resets)
        self._is_over.set()

    def tick(self) -> bool:
        """Implement `ClientSide.tick`."""
        transport = self._handler.transport
        if transport is None:
            return False
        return self._may_read.is_set() or not is_gone(transport)


class SentResponse(web.StreamResponse):
    """Response that was written already; the last one of its connection."""

    def __init__(self) -> None:
        # The base class's constructor is skipped, as in `PreparedResponse`.
        self._keep_alive = False

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""
