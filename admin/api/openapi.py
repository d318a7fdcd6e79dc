"""`GET /openapi.json`: the OpenAPI document of every route of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import msgspec
from aiohttp import web

from admin.api.table import Row
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.openapi.call_routes import call_routes
from gateway.openapi.document import make_document
from gateway.openapi.model_routes import model_routes
from gateway.openapi.oip_routes import oip_routes
from gateway.problems import FOUND, json_document

PATH: Final = "/openapi.json"
PAGE: Final = "/docs"
PAGE_AT: Final = "ui/#/docs"
"""Place of the page, relative to PAGE: a proxy may offer the server below a path of its own."""
DESCRIPTION: Final = """\
Calls of functions (`/fn`), of models in the forms of OpenAI and Anthropic (`/v1`) and of the Open
Inference Protocol (`/v2`), the admin API (`/admin/v1`), and the state of the server.

Errors are problem documents (RFC 9457) with a `code`, below `/v1` and `/v2` in the form of the
protocol. A defect of the server itself is 500 with the code `internal`. What a server function
answers is its own matter. One function is described at `/fn/{name}/openapi.json`."""


def make_routes_document(rows: Sequence[Row]) -> bytes:
    """Return the document as JSON. `rows` are those of the admin API."""
    routes = [*call_routes(), *model_routes(), *oip_routes(), *(one.described() for one in rows)]
    text = " ".join(DESCRIPTION.split("\n")).replace("  ", "\n\n")
    info = {"title": "fngate", "version": version("fngate"), "description": text}
    return msgspec.json.encode(make_document(info, routes))


class DocumentPages:
    """Handlers of the document and of the short way to its page. Both are public: they are the same
    for everybody and tell nothing of what is deployed."""

    def __init__(self, boundary: ErrorBoundary, rows: Sequence[Row]) -> None:
        self._boundary = boundary
        self._rows = rows
        self._document: bytes | None = None

    def add_routes(self, app: web.Application) -> None:
        """Add the routes. Links from other sites may lead here."""
        for path, handler in ((PATH, self._get), (PAGE, self._to_page)):
            guarded = self._boundary.wrap(handler, is_linked=True)
            app.router.add_get(path, guarded, expect_handler=continue_later)

    async def _get(self, request: web.Request) -> web.Response:
        if self._document is None:
            # Built at the first request, in a thread: it takes about 30 ms.
            self._document = await asyncio.to_thread(make_routes_document, self._rows)
        return json_document(request, self._document)

    async def _to_page(self, _request: web.Request) -> web.Response:
        return web.Response(status=FOUND, headers={"Location": PAGE_AT})
