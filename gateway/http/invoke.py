"""`POST /fn/{name}` over aiohttp: the requests that no faster way takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from gateway.answers.reply import Reply, Writer
from gateway.http.assembly import Invoker
from gateway.http.bodies import check_framing, is_left_waiting, receive
from gateway.http.head import correlate, make_head
from gateway.http.invocation import Invocation

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_CALL: Final = re.compile("/fn/([a-z0-9@-]+)")


def calls_first(others: Handler, invoker: Invoker, writer: Writer) -> Handler:
    """What aiohttp's server is to do with requests: calls are known by their path alone, the
    application with its router has the `others`."""

    # Looked up once: Python 3.11 asks the system for the process's number each time.
    loop = asyncio.get_running_loop()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            found = _CALL.fullmatch(request.rel_url.raw_path)
            if found is not None:
                return await invoke(invoker, writer, request, found[1], loop.create_future())
        return await others(request)

    return handle


async def invoke(
    invoker: Invoker,
    writer: Writer,
    request: web.BaseRequest,
    ref: str,
    answer: asyncio.Future[Reply],
) -> web.StreamResponse:
    """Answer one invocation by way of `answer`; every error of the tree becomes a problem
    document."""
    header = request.headers.get
    head = make_head(ref, request.host, header)

    def answered(made: Reply) -> None:
        # Its client may have left in this very turn: the future is cancelled before the task.
        if not answer.done():
            answer.set_result(made)

    invocation = Invocation(invoker, head, answered, correlate(header))
    try:
        check_framing(request)
        most = invocation.admit(head)
        seconds = invoker.settings.body_read_s
        body = await receive(request, most, seconds, invocation, invoker.inflation)
    except Exception as error:  # noqa: BLE001 - the border: `fail` tells what may be told
        invocation.fail(error)
    except asyncio.CancelledError:
        invocation.leave()
        raise
    else:
        invocation.run(body)
    try:
        reply = await answer
    except asyncio.CancelledError:
        invocation.leave()
        raise
    return _response(request, reply, writer)


def _response(request: web.BaseRequest, reply: Reply, writer: Writer) -> web.StreamResponse:
    # A client that was never asked for its body may send it all the same, or the next request.
    closes = reply.closes or is_left_waiting(request)
    if request.version == (1, 1) and request.keep_alive and not closes:
        return Written(writer.pieces(reply))
    headers = {**dict(reply.headers), "Server": "fngate"}
    response = web.Response(status=reply.status, headers=headers, body=bytes(reply.body))
    if closes:
        response.force_close()  # aiohttp goes by this, not by the header
    return response


class Written(web.StreamResponse):
    """A response whose bytes are made already: aiohttp's own way to the same bytes costs twice as
    much. For HTTP/1.1 connections that are kept alive."""

    def __init__(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        # Not the base's, whose headers and cookies nobody would read: aiohttp asks a response to
        # prepare itself and to end, and whether the connection goes on.
        self._pieces = pieces
        self._keep_alive = True

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write all of it; while the client reads too slowly, its next requests wait. Raises
        ConnectionResetError where it is gone."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        for piece in self._pieces:
            transport.write(piece)
        if request.protocol.writing_paused:
            await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
