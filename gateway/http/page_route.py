"""Requests to functions' own hosts on connections that aiohttp reads, and the gateway's own paths
there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from gateway import problems
from gateway.http.bodies import read_body
from gateway.http.boundary import answered
from gateway.http.exchange_route import proxy
from gateway.pages.cookies import LIFETIME_S, forget_cookie, make_value, set_cookie
from gateway.pages.entering import (
    ASKED_MAX,
    ENTER,
    ENTER_HEADERS,
    ENTER_PAGE,
    LEAVE,
    LEAVE_HEADERS,
    LEAVE_PAGE,
    check_entering,
    is_ours,
)
from gateway.pages.tickets import LIFETIME_S as TICKET_S
from registry.errors import ForeignHost, MethodNotAllowed, NoKey, Unknown

if TYPE_CHECKING:
    from gateway.admission.access import Access
    from gateway.http.context import Invoker
    from gateway.http.exchange_client import ExchangeParts
    from gateway.pages.tickets import Tickets
    from registry.catalog import Catalog

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
READ_S: Final = 10.0
METHODS: Final = ("GET", "HEAD", "POST")
PAGES: Final = {ENTER: (ENTER_PAGE, ENTER_HEADERS), LEAVE: (LEAVE_PAGE, LEAVE_HEADERS)}
"""Content and headers of the gateway's own pages by their paths."""


def route_pages(others: Handler, invoker: Invoker, parts: ExchangeParts) -> Handler:
    """Return a request handler for aiohttp's server that recognises functions' own hosts.

    `others` handles the requests to every other host. A request with several fields Host counts if
    one of them is a function's; it is refused then.
    """
    pages = _Pages(invoker, parts)
    function_of = invoker.access.hosts.function_of

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        for host in request.headers.getall(hdrs.HOST, ()):
            if function_of(host) is not None:
                return await pages.handle(request)
        return await others(request)

    return handle


class _Pages:
    """Handlers of requests to functions' own hosts. No other route exists there."""

    def __init__(self, invoker: Invoker, parts: ExchangeParts) -> None:
        self._parts = parts
        self._enter = invoker.enter
        self._own = guarded(self._answer)
        self._catalog = invoker.catalog
        self._access = invoker.access

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request to a function's own host."""
        if is_ours(request._message.path.encode("utf-8", "surrogateescape")):
            return await self._own(request)
        return await proxy(self._parts, request)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request to a path of the gateway's own."""
        function_of_request(request, self._access, self._catalog)
        path = request.rel_url.raw_path
        page = PAGES.get(path)
        if page is None or request.rel_url.raw_query_string:
            raise Unknown(f"no route {request.method} {path[:200]}")
        if request.method not in METHODS:
            text = f"expected {', '.join(METHODS)}, got {request.method}"
            raise MethodNotAllowed(text, detail={"allow": list(METHODS)})
        if request.method == "POST" and path == LEAVE:
            return _leave(request)
        if request.method == "POST" and self._enter is not None:
            return await self._enter(request)
        return web.Response(body=page[0], headers=page[1])


class Entry:
    """Handler of `POST /.fngate/enter`, which exchanges a ticket for a cookie.

    `wall` returns Unix seconds.
    """

    def __init__(
        self, access: Access, catalog: Catalog, tickets: Tickets, wall: Callable[[], float]
    ) -> None:
        self._access = access
        self._catalog = catalog
        self._tickets = tickets
        self._wall = wall
        self.handle: Final = guarded(self._enter)

    async def _enter(self, request: web.BaseRequest) -> web.StreamResponse:
        function = function_of_request(request, self._access, self._catalog)
        is_secure = _check_sender(request)
        word = await read_body(request, ASKED_MAX, READ_S)
        ticket = self._tickets.redeem(word.decode("latin-1").strip(), function)
        if ticket is None:
            raise NoKey(f"the ticket is unknown, was used, or is older than {TICKET_S:.0f} s")
        caller = self._access.callers.with_id(ticket.key_id)
        if caller is None:
            raise NoKey("the key was removed")
        caller.require("invoke", function)
        expires_s = int(self._wall()) + LIFETIME_S
        value = make_value(self._access.cookie_secret, ticket.key_id, function, expires_s)
        cookie = set_cookie(value, is_secure=is_secure)
        answered = {"Set-Cookie": cookie, "Cache-Control": "no-store"}
        return problems.json_answer({"path": ticket.path}, headers=answered)


def _leave(request: web.BaseRequest) -> web.Response:
    """Remove the cookie from the browser. What it says stays valid, as no process stores it."""
    cookie = forget_cookie(is_secure=_check_sender(request))
    left = {"Set-Cookie": cookie, "Cache-Control": "no-store"}
    return problems.json_answer({}, headers=left)


def _check_sender(request: web.BaseRequest) -> bool:
    """Return whether a page of this very host sent the request by https. Raises ForeignOrigin."""
    headers = request.headers
    origin = ", ".join(headers.getall(hdrs.ORIGIN, ()))  # several are none
    return check_entering(origin, headers.get("Sec-Fetch-Site"), request.host)


def function_of_request(request: web.BaseRequest, access: Access, catalog: Catalog) -> str:
    """Return the server function whose own host a request names. Raises ForeignHost."""
    hosts = request.headers.getall(hdrs.HOST, ())
    name = access.hosts.function_of(hosts[0]) if len(hosts) == 1 else None
    if name is None or catalog.find_server(name) is None:
        raise ForeignHost(f"Host: expected one of a server function, got {request.host[:100]!r}")
    return name


def guarded(handler: Handler) -> Handler:
    """Return `handler` with problem documents as the answers to errors."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return await answered(request, handler)

    return handle
