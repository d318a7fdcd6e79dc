"""Routes for functions' pages: tickets with which a browser opens one."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from admin.api.context import CALLER
from gateway.admission.access import Access
from gateway.http.bodies import read_body
from gateway.pages.entering import ENTER, check_path
from gateway.pages.tickets import LIFETIME_S, Tickets
from gateway.problems import CREATED, json_answer
from registry.bounded_text import read_json
from registry.catalog import Catalog
from registry.errors import BadRequest

REQUEST_MAX = 16 * 1024
READ_S = 10.0


class TicketRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A ticket. `path`: what it opens first."""

    path: str = "/"


class PageRoutes:
    """Handlers for functions' pages."""

    def __init__(self, access: Access, catalog: Catalog, tickets: Tickets) -> None:
        self._access = access
        self._catalog = catalog
        self._tickets = tickets

    async def add_ticket(self, request: web.Request) -> web.Response:
        """Return a ticket of the caller's key, and the address that takes it.

        The address has no scheme: the client knows the one by which it reaches this server.
        """
        caller = request[CALLER]
        deployed = self._catalog.resolve(request.match_info["name"], may_see=caller.may_invoke)
        name = deployed.function.name
        if deployed.revision.server is None:
            raise BadRequest(f"{name} is a model: only server functions have pages")
        if "@" in request.match_info["name"]:
            raise BadRequest("expected a name without a revision: pages follow the traffic")
        host = self._access.hosts.page_host(name, request.host)
        if host is None:
            raise BadRequest("pages need a host name: start the server with --public-host NAME")
        path = check_path(await _path(request))
        ticket = self._tickets.issue(caller.id, name, path)
        return json_answer(ticket_json(ticket, host), CREATED, {"Cache-Control": "no-store"})


def ticket_json(ticket: str, host: str) -> dict[str, Any]:
    """Return a ticket for the function's host `host`."""
    return {"ticket": ticket, "address": f"{host}{ENTER}#{ticket}", "expires_s": LIFETIME_S}


async def _path(request: web.Request) -> str:
    """Return the path that a request for a ticket names. Raises BadRequest."""
    body = await read_body(request, REQUEST_MAX, READ_S)
    return read_json(body or b"{}", TicketRequest, "the request").path
