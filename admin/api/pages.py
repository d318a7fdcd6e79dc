"""Routes for functions' pages: tickets with which a browser opens one."""

from __future__ import annotations

from aiohttp import web

from admin.api.answers import json_answer, read_request
from admin.api.context import CALLER
from admin.documents.functions import TicketRow
from admin.documents.requests import TicketRequest
from gateway.admission.access import Access
from gateway.pages.entering import ENTER, check_path
from gateway.pages.tickets import LIFETIME_S, Tickets
from gateway.statuses import CREATED
from registry.catalog import Catalog
from registry.errors import BadRequest

REQUEST_MAX = 16 * 1024


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
        asked = await read_request(
            request, TicketRequest, "the request", REQUEST_MAX, is_optional=True
        )
        path = check_path(asked.path)
        ticket = self._tickets.issue(caller.id, name, path)
        return json_answer(ticket_row(ticket, host), CREATED, {"Cache-Control": "no-store"})


def ticket_row(ticket: str, host: str) -> TicketRow:
    """Return a ticket for the function's host `host`."""
    return TicketRow(ticket, f"{host}{ENTER}#{ticket}", LIFETIME_S)
