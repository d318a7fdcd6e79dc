"""The error boundary of handlers that aiohttp calls: no defect exposes internals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog
from aiohttp import web

from gateway import problems
from gateway.http.bodies import check_framing, is_awaiting_continue
from gateway.http.call_route import credential_in
from gateway.pages.origins import asked_for
from registry.errors import FnError

if TYPE_CHECKING:
    from gateway.admission.access import Access
    from gateway.replies import Reply

log = structlog.get_logger()

Request = TypeVar("Request", bound=web.BaseRequest)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def answered(
    request: Request,
    handler: Callable[[Request], Awaitable[web.StreamResponse]],
    shape: Callable[[FnError], Reply] = problems.reply,
) -> web.StreamResponse:
    """Return what `handler` answers, or the error that it raises as `shape` makes it.

    The connection is closed where the client has not sent its body.
    """
    try:
        check_framing(request)
        response = await handler(request)
    except FnError as error:
        response = problems.response_of(shape(error))
    except Exception:  # error boundary: a defect must not expose internals
        log.exception("a request failed", path=request.path[:200])
        response = problems.response_of(shape(FnError("see the server's log")))
    if is_awaiting_continue(request):
        response.force_close()
    return response


class ErrorBoundary:
    """Wraps every route except invoking: checks Host and Origin, turns errors into problems."""

    def __init__(self, access: Access, shape: problems.ErrorShape = problems.reply) -> None:
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
            asked = asked_for(request.method, request.headers.get)
            if is_linked:
                asked = asked._replace(origin=None, site=None)
            access.check_source(asked._replace(host=request.host), request.rel_url.raw_path)
            return await handler(request)

        async def guarded(request: web.Request) -> web.StreamResponse:
            def shape(error: FnError) -> Reply:
                return self._shape(error, for_admin=access.is_admin(credential_in(request)))

            return await answered(request, checked, shape)

        return guarded
