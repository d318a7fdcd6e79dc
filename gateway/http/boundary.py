"""Error boundary of routes: their answers to errors, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog
from aiohttp import web

from gateway import problems
from gateway.access import Access
from gateway.http.bodies import check_framing, is_awaiting_continue
from gateway.replies import Reply
from registry.errors import FnError

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Shape(Protocol):
    """Makes the answer for an error, in the form of a protocol."""

    def __call__(self, error: FnError, *, for_admin: bool = False) -> Reply:
        """Return the answer; `for_admin` adds what only administrators may read."""


class ErrorBoundary:
    """Wraps every route except invoking: checks Host and Origin, turns errors into problems."""

    def __init__(self, access: Access, shape: Shape = problems.reply) -> None:
        """`shape` makes the answers for errors."""
        self.access = access
        self._shape = shape

    def wrap(self, handler: Handler, *, is_linked: bool = False) -> Handler:
        """Return `handler` behind the boundary.

        `is_linked`: pages of other sites may link to the route, because it changes nothing and
        gives every caller the same answer.
        """
        access = self.access

        async def checked(request: web.Request) -> web.StreamResponse:
            headers = request.headers
            try:
                check_framing(request)
                access.check_host(request.host)
                origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
                if not is_linked:
                    path = request.rel_url.raw_path
                    access.check_origin(origin, site, request.host, path)
                return await handler(request)
            except FnError as error:
                is_admin = access.is_admin(headers.get("Authorization"))
                return response_of(self._shape(error, for_admin=is_admin))
            except Exception:  # error boundary: a defect must not expose internals
                log.exception("a request failed", path=request.path)
                return response_of(self._shape(FnError("see the server's log")))

        async def guarded(request: web.Request) -> web.StreamResponse:
            response = await checked(request)
            if is_awaiting_continue(request):
                response.force_close()
            return response

        return guarded


def response_of(reply: Reply) -> web.Response:
    """Return a reply as an aiohttp response."""
    status, headers, body = reply
    return web.Response(status=status, body=bytes(body), headers=dict(headers))
