"""Serves the dashboard: a program without any data, the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from admin.ui.files import INDEX, File, is_built
from gateway.http.app import Border
from gateway.http.bodies import continue_later
from gateway.problems import FOUND, MOVED, NOT_MODIFIED
from registry.errors import MethodNotAllowed, Unknown

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FOR_EVER: Final = "public, max-age=31536000, immutable"
ASK: Final = "no-cache"
"""Keep it, and ask each time whether it is still the same."""
READ: Final = ("GET", "HEAD")


class UiPages:
    """`/ui/` and its files. A name is looked up whole among those of the build: no path of the file
    system is ever made from a request."""

    def __init__(self, border: Border, files: Mapping[str, File]) -> None:
        self._border = border
        self._files = files

    def add_routes(self, app: web.Application) -> None:
        """The routes. A link in a wiki may lead here: there is no datum, and no frame around it."""
        root = self._border.bordered(self._root, is_linked=True)
        app.router.add_get("/", root, expect_handler=continue_later)
        folder = self._border.bordered(self._to_folder, is_linked=True)
        app.router.add_route("*", "/ui", folder, expect_handler=continue_later)
        file = self._border.bordered(self._file, is_linked=True)
        app.router.add_route("*", "/ui/{file:.*}", file, expect_handler=continue_later)

    async def _root(self, request: web.Request) -> web.Response:
        """The way to the dashboard for a browser; any other client learns what there is."""
        accepts = request.headers.get("Accept", "*/*")
        if is_built(self._files) and ("text/html" in accepts or "*/*" in accepts):
            return web.Response(status=FOUND, headers={"Location": "ui/", "Vary": "Accept"})
        raise Unknown(
            "nothing is at /: functions are at /fn/NAME, the admin API is at /admin/v1, the state"
            " of the server at /readyz, the dashboard at /ui/"
        )

    async def _to_folder(self, request: web.Request) -> web.Response:
        """Names in the page are relative to /ui/. The answer itself has nothing to run."""
        _check_method(request)
        query = f"?{request.query_string}" if request.query_string else ""
        location = {"Location": f"/ui/{query}"}
        return web.Response(status=MOVED, headers=location)

    async def _file(self, request: web.Request) -> web.Response:
        _check_method(request)
        name = request.match_info["file"] or INDEX
        file = self._files.get(name)
        if file is None:
            raise Unknown(f"the dashboard has no file {name[:100]!r}")
        headers = {
            **HEADERS,
            "Content-Type": file.content_type,
            "Cache-Control": FOR_EVER if file.is_immutable else ASK,
            "ETag": f'"{file.etag}"',
        }
        known = request.if_none_match or ()
        if any(tag.value in (file.etag, "*") for tag in known):
            return web.Response(status=NOT_MODIFIED, headers=headers)
        return web.Response(body=file.body, headers=headers)


def _check_method(request: web.Request) -> None:
    if request.method not in READ:
        detail = {"allow": list(READ)}
        raise MethodNotAllowed(f"expected GET or HEAD, got {request.method}", detail=detail)
