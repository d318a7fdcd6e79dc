"""Reading of request bodies, with limits on size, time and memory.

`receive` reads the body of a request that aiohttp has parsed. `BodyReceiver` receives the rest of a
large body of the fast path into shared memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from aiohttp import HttpVersion11, hdrs, web

from gateway.body_memory import GrowingBody
from gateway.http.decompression import Inflation, encoding_of, inflating_threads
from gateway.http.reservations import OnEvicted
from registry.errors import BadRequest, BodyTimeout, BodyTooLarge, ExpectationFailed, FnError

Body = bytes | bytearray | memoryview
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodySink(Protocol):
    """Destination of a body, and the memory budget that its bytes are reserved from."""

    def buffer(self, length: int) -> memoryview | None:  # noqa: ARG002 - the protocol's signature
        """Return memory for a body of `length` bytes; None if the reader may use its own."""
        return None

    def room(self, most: int) -> memoryview | None:  # noqa: ARG002 - the protocol's signature
        """Return memory for a large body of at most `most` bytes; None if the reader may use its
        own."""
        return None

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Reserve `count` more bytes. Raises FnError if there is no memory for them.

        `on_evicted` is called if the memory is needed for other requests later.
        """


class UncountedBody(BodySink):
    """Sink for small bodies of authorized clients, in the reader's memory: nothing is reserved."""

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Do nothing."""


def check_framing(request: web.BaseRequest) -> None:
    """Raise BadRequest if HTTP parsers could disagree about the end of the body.

    Raise ExpectationFailed on any expectation except 100-continue.
    """
    headers = request.headers
    if hdrs.TRANSFER_ENCODING in headers:
        coding = ", ".join(headers.getall(hdrs.TRANSFER_ENCODING))
        if coding.lower() != "chunked":
            raise BadRequest(f"Transfer-Encoding: expected chunked, got {coding[:100]!r}")
    if hdrs.EXPECT in headers and headers[hdrs.EXPECT].lower() != "100-continue":
        text = f"Expect: expected 100-continue, got {headers[hdrs.EXPECT][:100]!r}"
        raise ExpectationFailed(text)


def is_awaiting_continue(request: web.BaseRequest) -> bool:
    """Return whether the client still waits for "100 Continue" before it sends its body."""
    is_expecting = hdrs.EXPECT in request.headers and request.version >= HttpVersion11
    return is_expecting and not request.content.is_eof()


async def send_continue(request: web.BaseRequest) -> None:
    """Send "100 Continue" to a client that waits for it. To be called after all checks."""
    if is_awaiting_continue(request):
        await request.writer.write(CONTINUE)
        # aiohttp treats any output as the start of the response.
        request.writer.output_size = 0


async def continue_later(_request: web.Request) -> None:
    """Do nothing (aiohttp's Expect handler): `send_continue` is called after all checks."""


async def read_body(request: web.BaseRequest, most: int, seconds: float) -> bytes:
    """Return the complete body. Raises like `receive`."""
    inflation = Inflation(inflating_threads())
    try:
        return bytes(await receive(request, most, seconds, UncountedBody(), inflation))
    finally:
        inflation.close()


async def receive(
    request: web.BaseRequest, most: int, seconds: float, sink: BodySink, inflation: Inflation
) -> Body:
    """Return the complete body, without its content coding.

    It is in the memory of `sink` if that provides any. Raises BodyTooLarge, before reading if the
    length is known. Also raises UnsupportedEncoding, BodyTimeout and BodyEvicted, and BadRequest if
    the body is truncated or badly encoded.
    """
    encoding = encoding_of(request.headers.getall(hdrs.CONTENT_ENCODING, []))
    length = request.content_length
    if length is not None and length > most:
        raise _too_large(length, most)
    if not request.can_read_body:
        return b""
    await send_continue(request)
    reading = _Reading(request, most, seconds, sink)
    try:
        if encoding:
            return await reading.inflated(encoding, inflation)
        return await reading.whole(length)
    except web.RequestPayloadError as error:
        # The text is "400, message:", followed by the reason on a separate line.
        reason = str(error).partition("\n")[2].strip() or "it is truncated"
        raise BadRequest(f"the body cannot be read: {reason[:200]}") from error


class _Reading:
    """One body that is being read from `request` into `sink`."""

    def __init__(self, request: web.BaseRequest, most: int, seconds: float, sink: BodySink) -> None:
        self._request = request
        self._most = most
        self._seconds = seconds
        self._sink = sink
        self._limit = asyncio.timeout(None)
        self._error: FnError | None = None

    async def whole(self, length: int | None) -> Body:
        """Return the body unchanged; `length` is None if the client did not send it."""
        if self._request.content.is_eof():  # the body arrived with the head: no timer is needed
            return self._all_read()
        return await self._in_time(self._place(length))

    async def inflated(self, encoding: str, inflation: Inflation) -> Body:
        """Return the body without its content coding."""
        return await self._in_time(self._inflate(encoding, inflation))

    async def _inflate(self, encoding: str, inflation: Inflation) -> Body:
        if self._request.content.is_eof():
            packed: Body = self._all_read()
            self._count(len(packed))
        else:
            packed = await self._gather(GrowingBody(lambda: None))
        sink = self._sink
        try:
            return await inflation.inflate(packed, encoding, self._most, self._count, sink.room)
        finally:
            del packed

    async def _in_time(self, work: Coroutine[object, object, Body]) -> Body:
        loop = asyncio.get_running_loop()
        try:
            async with self._limit:
                self._limit.reschedule(loop.time() + self._seconds)
                return await work
        except TimeoutError:
            error, self._error = self._error, None
            if error is not None:
                try:
                    raise error from None
                finally:
                    del error  # the traceback references this frame, and so the body
            raise BodyTimeout(f"the body did not arrive within {self._seconds:g} s") from None

    async def _place(self, length: int | None) -> Body:
        view = None if length is None else self._sink.buffer(length)
        if view is not None:
            return await self._fill(view)
        return await self._gather(GrowingBody(lambda: self._sink.room(self._most)))

    async def _gather(self, body: GrowingBody) -> bytearray | memoryview:
        content = self._request.content
        while not content.at_eof():
            piece = await content.readany()
            _check_size(body.size + len(piece), self._most)
            self._count(len(piece))
            body.add(piece)
        return body.whole()

    async def _fill(self, view: memoryview) -> memoryview:
        content = self._request.content
        filled = 0
        while not content.at_eof():
            piece = await content.readany()
            self._count(len(piece))
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled != len(view):
            raise BadRequest(f"the body cannot be read: expected {len(view)} bytes, got {filled}")
        return view

    def _all_read(self) -> bytes:
        body = self._request.content.read_nowait()
        _check_size(len(body), self._most)
        return body

    def _count(self, count: int) -> None:
        self._sink.count(count, self._on_evicted)

    def _on_evicted(self, error: FnError) -> None:
        """Stop reading the body at once: its memory is needed for other requests."""
        self._error = error
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


def _check_size(got: int, most: int) -> None:
    if got > most:
        raise _too_large(got, most)


def _too_large(got: int, most: int) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {most} bytes, got {got} or more")


LARGE_READ: Final = 32 * 1024
"""Bytes. A client whose reads are at least this large is fast."""
READS_AHEAD: Final = 4
"""Number of reads that are counted in advance for a fast client."""


class BodyReceiver(asyncio.BufferedProtocol):
    """Protocol that receives a body from the socket into `view`.

    It replaces the connection's protocol meanwhile. `on_received(count)` counts bytes. After a
    large read the next reads are counted in advance, because counting takes a twentieth of the time
    of a read. `on_complete()` is called when the view is full, `on_lost(error)` if the client
    disconnects first.
    """

    __slots__ = ("_ahead", "_filled", "_on_complete", "_on_lost", "_on_received", "_view")

    def __init__(
        self,
        view: memoryview,
        on_received: Callable[[int], None],
        on_complete: Callable[[], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._view = view
        self._on_received = on_received
        self._on_complete = on_complete
        self._on_lost = on_lost
        self._filled = 0
        self._ahead = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Return the receive buffer (asyncio). Never empty: the last byte ends this protocol."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes (asyncio)."""
        self._filled += nbytes
        if self._filled == len(self._view):
            self._view = memoryview(b"")
            self._on_complete()
        elif nbytes <= self._ahead:
            self._ahead -= nbytes
        else:
            counted, self._ahead = self._ahead, 0
            if nbytes >= LARGE_READ:
                self._ahead = min(READS_AHEAD * nbytes, len(self._view) - self._filled)
            self._on_received(nbytes - counted + self._ahead)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the client has disconnected (asyncio)."""
        self.drop()
        self._on_lost(exc)

    def drop(self) -> None:
        """Drop the memory: another protocol has replaced this one, which uvloop's transport keeps
        until its end."""
        self._view = memoryview(b"")


class BodyDiscarder(asyncio.Protocol):
    """Protocol that discards the rest of a refused body.

    Closing a socket with unread bytes resets the connection, and the client might lose the answer.
    `connection` is told of everything else.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: asyncio.Protocol) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        """Discard received bytes (asyncio)."""

    def pause_writing(self) -> None:
        """Report that the client has not taken all of its answer (asyncio)."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Report that the client has taken its answer (asyncio)."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the client has disconnected (asyncio)."""
        self._connection.connection_lost(exc)


def switch_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Give a transport another protocol.

    Reading is paused meanwhile: the old protocol may take bytes while the new one receives into its
    own buffer.
    """
    replaced = transport.get_protocol()
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
    if isinstance(replaced, BodyReceiver):
        replaced.drop()
