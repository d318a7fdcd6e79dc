"""Routes for aliases: further names of functions' models at /v1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from admin.api.functions import page_of
from admin.deploy.deploys import Deploys
from gateway.http.bodies import read_body
from gateway.problems import CREATED, OK, json_answer
from registry.bounded_text import read_json
from registry.catalog import Catalog

REQUEST_MAX: Final = 4 * 1024
READ_S: Final = 10.0
_AT: Final = "@"
"""Between function and alias in a cursor: neither can have it."""


class AliasRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A further name of the model of a function."""

    function: str
    alias: str


class _Alias(NamedTuple):
    function: str
    alias: str

    def view(self) -> dict[str, Any]:
        return {"alias": self.alias, "function": self.function}

    def cursor(self) -> str:
        return f"{self.function}{_AT}{self.alias}"


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
        return page.answer(self._rows(page.start, only), _Alias.cursor, _Alias.view)

    async def add_alias(self, request: web.Request) -> web.Response:
        """Give a function's model a further name: 201, or 200 if it has that name already. A name
        that another function has is refused with 409, which names the function."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        wanted = read_json(body, AliasRequest, "the alias")
        function, is_new = await self._deploys.add_alias(wanted.function, wanted.alias)
        answer = {"alias": wanted.alias, "function": function.name, "created": is_new}
        return json_answer(answer, CREATED if is_new else OK)

    async def remove_alias(self, request: web.Request) -> web.Response:
        """Remove an alias, named by the query's `alias`, as it may have slashes."""
        alias = request.query.get("alias", "")
        function = await self._deploys.remove_alias(alias)
        return json_answer({"removed": alias, "function": function.name})

    def _rows(self, start: str, only: str) -> Iterator[_Alias]:
        """Yield aliases from the cursor `start` on, by function and alias."""
        first, _, alias = start.partition(_AT)
        for deployed in self._catalog.walk(max(first, only)):
            name = deployed.function.name
            if only and name != only:
                return
            for one in deployed.function.aliases:
                if name != first or one >= alias:
                    yield _Alias(name, one)
