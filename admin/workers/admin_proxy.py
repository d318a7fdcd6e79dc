"""Proxy of a worker: requests that are not calls go unchanged to the server's application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
import structlog
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from admin.workers.requests import away
from gateway.admission.credentials import is_passed_on
from gateway.http.bodies import is_awaiting_continue, send_continue
from registry.errors import BadRequest, QueueFull

log = structlog.get_logger()

PROXIED_MAX: Final = 512
"""Max requests of one gateway process at the server at once."""
CONNECT_S: Final = 5.0
SILENT_S: Final = 3700.0
"""Max silent seconds: longer than any wait at the server. Requests with a body have no limit
here; the server bounds how long the next piece may take."""
HOP_BY_HOP: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "te", "transfer-encoding", "upgrade"}
)
"""Header fields of one connection, not of the message (RFC 9110, section 7.6.1)."""
FRAMING: Final = frozenset({"content-length", "expect"})
"""Header fields that each connection sets anew."""
AUTOMATIC: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class AdminProxy:
    """Forwards requests; bodies and answers are streamed with back-pressure in both directions. A
    client's disconnect also cancels its request at the server."""

    def __init__(self, path: str) -> None:
        """`path` is the server's Unix socket. Create it in the event loop."""
        self._path = path
        self._active = 0
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=AUTOMATIC,
        )

    async def close(self, _app: object = None) -> None:
        """End every connection (handler of aiohttp's clean-up signal)."""
        await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the server's answer. Raises ServerAway, QueueFull or BadRequest."""
        if self._active >= PROXIED_MAX:
            raise QueueFull(f"{self._active} requests wait for the server", retry_after_s=1)
        self._active += 1
        body = _Body(request)
        try:
            return await self._pass(request, body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if body.broken:
                raise BadRequest(f"the body cannot be read: {body.broken}") from error
            raise away() from error
        finally:
            self._active -= 1
            await body.stop()

    async def _pass(self, request: web.BaseRequest, body: _Body) -> web.StreamResponse:
        has_body = request.can_read_body
        headers = forwarded_headers(request.headers)
        if has_body and request.content_length is not None:
            headers[hdrs.CONTENT_LENGTH] = str(request.content_length)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_S, sock_read=None if has_body else SILENT_S
        )
        async with self._session.request(
            request.method,
            target_url(request),
            headers=headers,
            data=body if has_body else None,
            timeout=timeout,
            allow_redirects=False,
            # Ask the server first: only it can decide whether it accepts the body.
            expect100=has_body and is_awaiting_continue(request),
        ) as answer:
            return await _relay(request, answer)


async def _relay(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Stream the answer; an answer that is cut off aborts the client's connection as well."""
    headers = forwarded_headers(answer.headers)
    if (length := answer.headers.get(hdrs.CONTENT_LENGTH)) is not None:
        headers[hdrs.CONTENT_LENGTH] = length
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    is_last = answer.headers.get(hdrs.CONNECTION, "").lower() == "close"
    if is_last or is_awaiting_continue(request):
        response.force_close()
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        log.info("an answer broke off", path=request.path[:200], reason=repr(error))
        if request.transport is not None:
            request.transport.abort()
    return response


def forwarded_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the header fields to forward to the next hop, all values of each."""
    named = {
        token.strip().lower()
        for key, value in headers.items()
        if key.lower() == "connection"
        for token in value.split(",")
    }
    # Fields that a proxy added stay, even if the request names them in Connection.
    left = {name for name in named if not is_passed_on(name)} | HOP_BY_HOP | FRAMING
    return CIMultiDict((key, value) for key, value in headers.items() if key.lower() not in left)


def target_url(request: web.BaseRequest) -> URL:
    """Return the same path and query, not decoded, also for a request in absolute form."""
    raw = request.raw_path
    path = raw if raw.startswith("/") else request.rel_url.raw_path_qs
    return URL(f"http://localhost{path}", encoded=True)


class _Body(AsyncIterator[bytes]):
    """Body of a request while it arrives. `broken` has the reason if it cannot be read."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._is_reading = False
        self._is_begun = False
        self.broken = ""

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        self._is_reading = True
        try:
            if not self._is_begun:
                self._is_begun = True
                await send_continue(self._request)
            piece = await self._request.content.readany()
        except (web.RequestPayloadError, aiohttp.ClientError) as error:
            # aiohttp's text is "400, message:", then the reason on a line of its own.
            self.broken = str(error).partition("\n")[2].strip()[:200] or "it is truncated"
            raise
        finally:
            self._is_reading = False
        if not piece:
            raise StopAsyncIteration
        return piece

    async def stop(self) -> None:
        """Return when no read is pending. The HTTP server discards the rest of the body itself."""
        while self._is_reading:  # noqa: ASYNC110 - the reader was cancelled and takes one turn
            await asyncio.sleep(0)
