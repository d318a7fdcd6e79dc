"""Routes for aliases: further names of functions' models at /v1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiohttp import web

from admin.api.answers import json_answer, page_of, read_request
from admin.deploy.deploys import Deploys
from admin.documents.requests import AliasRequest
from admin.documents.server import AliasRow, NewAlias, RemovedAlias
from gateway.statuses import CREATED, OK
from registry.catalog import Catalog

REQUEST_MAX: Final = 4 * 1024
_AT: Final = "@"
"""Between function and alias in a cursor: neither can have it."""


class AliasRoutes:
    """Handlers for aliases. Each belongs to one function; deploys and rollbacks keep it."""

    def __init__(self, catalog: Catalog, deploys: Deploys) -> None:
        self._catalog = catalog
        self._deploys = deploys

    async def list_aliases(self, request: web.Request) -> web.Response:
        """Return one page of the aliases, by function; with `function`, those of that function."""
        page, only = page_of(request.query), request.query.get("function", "")
        if only:
            self._catalog.resolve(only)
        return page.answer(self._rows(page.start, only))

    async def add_alias(self, request: web.Request) -> web.Response:
        """Give a function's model a further name: 201, or 200 if it has that name already. A name
        that another function has is refused with 409, which names the function."""
        wanted = await read_request(request, AliasRequest, "the alias", REQUEST_MAX)
        function, is_new = await self._deploys.add_alias(wanted.function, wanted.alias)
        answer = NewAlias(wanted.alias, function.name, is_new)
        return json_answer(answer, CREATED if is_new else OK)

    async def remove_alias(self, request: web.Request) -> web.Response:
        """Remove an alias, named by the query's `alias`, as it may have slashes."""
        alias = request.query.get("alias", "")
        function = await self._deploys.remove_alias(alias)
        return json_answer(RemovedAlias(alias, function.name))

    def _rows(self, start: str, only: str) -> Iterator[tuple[str, AliasRow]]:
        """Yield cursors and aliases from the cursor `start` on, by function and alias."""
        first, _, alias = start.partition(_AT)
        for deployed in self._catalog.walk(max(first, only)):
            name = deployed.function.name
            if only and name != only:
                return
            for one in deployed.function.aliases:
                if name != first or one >= alias:
                    yield f"{name}{_AT}{one}", AliasRow(one, name)
