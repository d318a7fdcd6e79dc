"""Calls of models that aiohttp reads: recognised by their path, run by an `Invocation`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web

from gateway import problems
from gateway.admission.calls import Head, correlate, make_head
from gateway.admission.credentials import Credential, Realm, read_credential
from gateway.http.bodies import check_framing, is_awaiting_continue, receive
from gateway.http.compression import compressed, requested_coding
from gateway.http.context import Invoker
from gateway.http.invocation import Invocation
from gateway.replies import Reply, Writer

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_CALL: Final = re.compile(
    r"/(?:fn/([a-z0-9@-]+)|v2/models/([A-Za-z0-9._-]{1,255})(?:/versions/([^/]{1,80}))?/infer)"
)
_FUNCTION: Final = re.compile("/fn/([a-z0-9@-]+)")


def route_calls(others: Handler, invoker: Invoker, writer: Writer) -> Handler:
    """Return a request handler for aiohttp's server that recognises calls by their path alone.

    `others` handles all other requests with the application's router.
    """

    origins = invoker.admission.origins

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            found = _CALL.fullmatch(request.rel_url.raw_path)
            if found is not None:
                ref, model, version = found.groups()
                if ref is None:
                    head = head_of(request, model, version or "")
                    return await invoke(invoker, writer, request, head)
                if invoker.catalog.find_server(ref) is None:
                    return await invoke(invoker, writer, request, head_of(request, ref))
        if request.method == "OPTIONS" and not _is_for_server(invoker, request):
            path, header = request.rel_url.raw_path, request.headers.get
            fields = origins.preflight(request.method, path, header)
            if fields is not None and invoker.access.hosts.has(request.host):
                return web.Response(headers=fields)
        return await others(request)

    return handle


def _is_for_server(invoker: Invoker, request: web.BaseRequest) -> bool:
    """Return whether a request is for a server function, which has origins of its own."""
    found = _FUNCTION.match(request.rel_url.raw_path)
    return found is not None and invoker.catalog.find_server(found[1]) is not None


def head_of(request: web.BaseRequest, ref: str, version: str | None = None) -> Head:
    """Return the head of a request; `ref` and `version` as in `Head`."""
    return make_head(ref, request.host, request.headers.get, request.headers, version)


def credential_in(request: web.BaseRequest, realm: Realm = Realm.CALLS) -> Credential:
    """Return the credentials of a request that count in a realm."""
    return read_credential(request.headers.get, request.host, request.headers, realm)


async def invoke(
    invoker: Invoker, writer: Writer, request: web.BaseRequest, head: Head
) -> web.StreamResponse:
    """Answer one invocation. Every FnError becomes an answer in the form of the head's protocol."""
    answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answered(made: Reply) -> None:
        # If the client disconnected in this loop iteration, the future is cancelled first.
        if not answer.done():
            answer.set_result(made)

    invocation = Invocation(invoker, head, answered, correlate(request.headers.get))
    try:
        check_framing(request)
        most = invocation.admit(head)
        seconds = invoker.settings.body_read_s
        body = await receive(request, most, seconds, invocation, invoker.inflation)
    except Exception as error:  # noqa: BLE001 - error boundary: `fail` hides internals
        invocation.fail(error)
    except asyncio.CancelledError:
        invocation.cancel()
        raise
    else:
        invocation.run(body)
        del body  # the call has it
    try:
        reply = await answer
    except asyncio.CancelledError:
        invocation.cancel()
        raise
    if head.version is not None:
        coding = requested_coding(request.headers.getall(hdrs.ACCEPT_ENCODING, ()))
        if coding:
            reply = await compressed(reply, coding, invoker.inflation)
    return _response(request, _shared(invoker, request, reply), writer)


def _shared(invoker: Invoker, request: web.BaseRequest, reply: Reply) -> Reply:
    """Return a reply that a page of a listed origin can read."""
    origin = request.headers.get("Origin")
    if origin is None:
        return reply
    fields = invoker.admission.origins.fields(request.rel_url.raw_path, origin)
    return reply._replace(headers=(*reply.headers, *fields)) if fields else reply


def _response(request: web.BaseRequest, reply: Reply, writer: Writer) -> web.StreamResponse:
    # A client that got no "100 Continue" may send its body nevertheless, or the next request.
    closes = reply.closes or is_awaiting_continue(request)
    if request.version == (1, 1) and request.keep_alive and not closes:
        return PreparedResponse(writer.pieces(reply))
    response = problems.response_of(reply)
    if closes:
        response.force_close()  # aiohttp evaluates this, not the header
    return response


class PreparedResponse(web.StreamResponse):
    """Response with prepared bytes, sent in half of aiohttp's time.

    For HTTP/1.1 connections that are kept alive.
    """

    def __init__(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        # The base class's constructor is skipped: it would create unused headers and cookies.
        # aiohttp calls only `prepare` and `write_eof`, and reads the keep-alive state.
        self._pieces = pieces
        self._keep_alive = True

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write all bytes. Raises ConnectionResetError if the client is gone.

        While the client reads too slowly, its next requests wait.
        """
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        for piece in self._pieces:
            transport.write(piece)
        request.writer.output_size += len(self._pieces[0])  # as for any answer that has begun
        if request.protocol.writing_paused:
            await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: `prepare` has written everything."""
