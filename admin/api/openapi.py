"""`GET /openapi.json`: the OpenAPI document of every route of the server."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Final

from aiohttp import web

from admin.documents.openapi import make_routes_document
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.problems import json_document
from gateway.statuses import FOUND

PATH: Final = "/openapi.json"
PAGE: Final = "/docs"
PAGE_AT: Final = "ui/#/docs"
"""Place of the page, relative to PAGE: a proxy may offer the server below a path of its own."""


class DocumentPages:
    """Handlers of the document and of the short way to its page. Both are public: they are the same
    for everybody and tell nothing of what is deployed."""

    def __init__(self, boundary: ErrorBoundary) -> None:
        self._boundary = boundary
        self._document: bytes | None = None

    def add_routes(self, app: web.Application) -> None:
        """Add the routes. Links from other sites may lead here."""
        for path, handler in ((PATH, self._get), (PAGE, self._to_page)):
            guarded = self._boundary.wrap(handler, is_linked=True)
            app.router.add_get(path, guarded, expect_handler=continue_later)

    async def _get(self, request: web.Request) -> web.Response:
        if self._document is None:
            # Built at the first request, in a thread: it takes about 30 ms.
            self._document = await asyncio.to_thread(make_routes_document, version("fngate"))
        return json_document(request, self._document)

    async def _to_page(self, _request: web.Request) -> web.Response:
        return web.Response(status=FOUND, headers={"Location": PAGE_AT})
