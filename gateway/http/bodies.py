"""Request bodies, read with limits on size, time and memory.

`receive` reads the body of a request that aiohttp parsed. `BodyReceiver` receives the rest of a
large body of the fast path into shared memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from aiohttp import HttpVersion11, hdrs, web

from gateway.http.decompression import Inflation, encoding_of, inflating_threads
from gateway.http.reservations import OnEvicted
from registry.errors import BadRequest, BodyTimeout, BodyTooLarge, ExpectationFailed, FnError

Body = bytes | bytearray | memoryview
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodySink(Protocol):
    """Takes a body in: where it is put, and what it counts against."""

    def buffer(self, length: int) -> memoryview | None:
        """Memory for a body of `length` bytes; None where any will do."""

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Count `count` more bytes. Raises FnError where there is no memory for them; `on_evicted`
        is called if the memory is needed later."""


class UncountedBody(BodySink):
    """For small bodies of clients with a key, which are not counted."""

    def buffer(self, length: int) -> memoryview | None:  # noqa: ARG002 - the protocol's signature
        """Any memory will do."""
        return None

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Nothing is counted."""


def check_framing(request: web.BaseRequest) -> None:
    """Raises BadRequest where readers of HTTP could disagree about the body's end, and
    ExpectationFailed on any expectation but 100-continue."""
    headers = request.headers
    if hdrs.TRANSFER_ENCODING in headers:
        coding = ", ".join(headers.getall(hdrs.TRANSFER_ENCODING))
        if coding.lower() != "chunked":
            raise BadRequest(f"Transfer-Encoding: expected chunked, got {coding[:100]!r}")
    if hdrs.EXPECT in headers and headers[hdrs.EXPECT].lower() != "100-continue":
        text = f"Expect: expected 100-continue, got {headers[hdrs.EXPECT][:100]!r}"
        raise ExpectationFailed(text)


def is_expecting(request: web.BaseRequest) -> bool:
    """Whether the client waits for "100 Continue" before it sends its body."""
    return hdrs.EXPECT in request.headers and request.version >= HttpVersion11


def is_awaiting_continue(request: web.BaseRequest) -> bool:
    """Whether the client waits for "100 Continue" and has not sent its body."""
    return is_expecting(request) and not request.content.is_eof()


async def send_continue(request: web.BaseRequest) -> None:
    """Send "100 Continue" to a client that waits for it. To be called after all checks."""
    if is_awaiting_continue(request):
        await request.writer.write(CONTINUE)
        # aiohttp takes any output for the start of the answer.
        request.writer.output_size = 0


async def continue_later(_request: web.Request) -> None:
    """aiohttp's handler of Expect does nothing: `send_continue` comes after all checks."""


async def read_body(request: web.Request, most: int, seconds: float) -> bytes:
    """The whole body. Raises as `receive` does."""
    inflation = Inflation(inflating_threads())
    try:
        return bytes(await receive(request, most, seconds, UncountedBody(), inflation))
    finally:
        inflation.close()


async def receive(
    request: web.BaseRequest, most: int, seconds: float, sink: BodySink, inflation: Inflation
) -> Body:
    """The whole body without its content coding, in memory of `sink` if that has any. Raises
    BodyTooLarge, before reading where the length is known.

    Also raises UnsupportedEncoding, BodyTimeout, BodyEvicted, and BadRequest where the body is
    broken off or badly encoded.
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
        # Its text is "400, message:", then what is wrong on a line of its own.
        reason = str(error).partition("\n")[2].strip() or "it is broken off"
        raise BadRequest(f"the body cannot be read: {reason[:200]}") from error


class _Reading:
    """One body on its way from `request` to `sink`."""

    def __init__(self, request: web.BaseRequest, most: int, seconds: float, sink: BodySink) -> None:
        self._request = request
        self._most = most
        self._seconds = seconds
        self._sink = sink
        self._limit = asyncio.timeout(None)
        self._error: FnError | None = None

    async def whole(self, length: int | None) -> Body:
        """The body as it comes; `length` is None where that is not told."""
        if self._request.content.is_eof():  # the body came with the head: no timer is needed
            return self._all_read()
        return await self._in_time(self._place(length))

    async def inflated(self, encoding: str, inflation: Inflation) -> Body:
        """The body without its coding."""
        return await self._in_time(self._inflate(encoding, inflation))

    async def _inflate(self, encoding: str, inflation: Inflation) -> Body:
        if self._request.content.is_eof():
            packed: bytes | bytearray = self._all_read()
            self._count(len(packed))
        else:
            packed = await self._gather()
        try:
            return await inflation.inflate(packed, encoding, self._most, self._count)
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
                    del error  # it keeps this frame, and with it the body
            raise BodyTimeout(f"the body did not arrive within {self._seconds:g} s") from None

    async def _place(self, length: int | None) -> Body:
        view = None if length is None else self._sink.buffer(length)
        return await (self._gather() if view is None else self._fill(view))

    async def _gather(self) -> bytearray:
        content = self._request.content
        body = bytearray()
        while not content.at_eof():
            piece = await content.readany()
            _check_size(len(body) + len(piece), self._most)
            self._count(len(piece))
            body += piece
        return body

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
        """Stop reading the body at once: its memory is needed."""
        self._error = error
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


def _check_size(got: int, most: int) -> None:
    if got > most:
        raise _too_large(got, most)


def _too_large(got: int, most: int) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {most} bytes, got {got} or more")


LARGE_READ: Final = 32 * 1024
"""Bytes. A client whose reads are this large is fast."""
READS_AHEAD: Final = 4
"""Reads that are counted ahead for a fast client."""


class BodyReceiver(asyncio.BufferedProtocol):
    """Takes the place of a connection's protocol while `view` is filled from the socket.

    `on_received(count)` counts bytes. After a large read the next ones are counted ahead, because
    counting takes a twentieth of the time of a read. `on_complete()` is called when the view is
    full, `on_lost(error)` when the client leaves before.
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
        """asyncio's: where to receive; never empty, for the last byte ends it."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's: bytes came."""
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
        """asyncio's: the client has left."""
        self._view = memoryview(b"")
        self._on_lost(exc)


class BodyDiscarder(asyncio.Protocol):
    """Drops the rest of a refused body: a connection that is closed with bytes unread is reset, and
    its client might lose the answer. `on_lost(error)` is called when the client is gone."""

    __slots__ = ("_on_lost",)

    def __init__(self, on_lost: Callable[[Exception | None], None]) -> None:
        self._on_lost = on_lost

    def data_received(self, data: bytes) -> None:
        """asyncio's: more of it."""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the client has left."""
        self._on_lost(exc)


def switch_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Give a transport another protocol. Nothing may be received in between: one protocol takes
    bytes, the other receives them into its own buffer."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
