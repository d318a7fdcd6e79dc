"""Files of the dashboard: read once, and served from memory without a key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from admin.ui import FOLDER, INDEX
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.statuses import FOUND, MOVED, NOT_MODIFIED
from registry.errors import MethodNotAllowed, Unknown

FILES_MAX: Final = 64
SIZE_MAX: Final = 16 * 1024 * 1024
"""Max bytes of all files together, as they stay in memory."""
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".map": "application/json",
}
"""Content types by suffix; files with other suffixes are not served."""
HASHED: Final = re.compile(r"-[A-Za-z0-9_-]{8}\.[a-z0-9]+$")
"""File names with a content hash of the build: their content never changes."""
NOT_BUILT: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>fngate</title></head><body>
<h1>The dashboard is not built</h1>
<p>This server runs without it. In the project's folder, <code>make ui</code> builds it (with Node
20.19 or newer, or with the one that it gets from PyPI); this page then shows it. <code>make
run</code> builds it beside the server.</p>
<p><code>fnctl ls</code>, <code>fnctl show</code> and <code>fnctl why</code> show the same in a
terminal.</p>
</body></html>
"""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src blob:",
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
"""Clients may cache the file, but must revalidate it each time."""
READ: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class File:
    """File with its content type and cacheability. `etag` is without quotes."""

    body: bytes
    content_type: str
    etag: str
    is_immutable: bool


def read_files(folder: Path = FOLDER) -> Mapping[str, File]:
    """Return the files directly in `folder` by name; without an index only a page that explains how
    to build them. Raises ValueError for more than FILES_MAX files or SIZE_MAX bytes."""
    if not (folder / INDEX).is_file():
        return {INDEX: make_file(INDEX, NOT_BUILT)}
    paths = sorted(path for path in folder.iterdir() if path.suffix in TYPES and path.is_file())
    size = sum(path.stat().st_size for path in paths)
    if len(paths) > FILES_MAX or size > SIZE_MAX:
        raise ValueError(
            f"{folder}: expected at most {FILES_MAX} files of {SIZE_MAX} bytes together, got"
            f" {len(paths)} of {size}"
        )
    return {path.name: make_file(path.name, path.read_bytes()) for path in paths}


def is_built(files: Mapping[str, File]) -> bool:
    """Return whether `files`, as returned by `read_files`, contain a dashboard."""
    return files[INDEX].body != NOT_BUILT


def make_file(name: str, body: bytes) -> File:
    """Return `body` as the file `name`, whose suffix is in TYPES."""
    etag = hashlib.sha256(body).hexdigest()[:32]
    return File(body, TYPES[Path(name).suffix], etag, HASHED.search(name) is not None)


class UiPages:
    """Handlers for `/ui/` and its files. Names are looked up among the files of the build; no file
    system path is ever derived from a request."""

    def __init__(
        self, boundary: ErrorBoundary, files: Mapping[str, File], folder: Path = FOLDER
    ) -> None:
        """`files` are the files in `folder` when the server started."""
        self._boundary = boundary
        self._files = files
        self._folder = folder

    def add_routes(self, app: web.Application) -> None:
        """Add the routes. Links from other sites may lead here: pages hold no data, and frames
        are denied."""
        root = self._boundary.wrap(self._root, is_linked=True)
        app.router.add_get("/", root, expect_handler=continue_later)
        folder = self._boundary.wrap(self._to_folder, is_linked=True)
        app.router.add_route("*", "/ui", folder, expect_handler=continue_later)
        file = self._boundary.wrap(self._file, is_linked=True)
        app.router.add_route("*", "/ui/{file:(?s:.*)}", file, expect_handler=continue_later)

    async def _root(self, request: web.Request) -> web.Response:
        """Redirect browsers to the dashboard; tell all other clients the entry points."""
        accepts = request.headers.get("Accept", "*/*")
        if is_built(self._current()) and ("text/html" in accepts or "*/*" in accepts):
            return web.Response(status=FOUND, headers={"Location": "ui/", "Vary": "Accept"})
        raise Unknown(
            "nothing is at /: functions are at /fn/NAME, the admin API is at /admin/v1, the state"
            " of the server at /readyz, the dashboard at /ui/"
        )

    async def _to_folder(self, request: web.Request) -> web.Response:
        """Redirect to /ui/, as names in the page are relative to it. The answer has no content."""
        _check_method(request)
        query = f"?{request.query_string}" if request.query_string else ""
        location = {"Location": f"/ui/{query}"}
        return web.Response(status=MOVED, headers=location)

    async def _file(self, request: web.Request) -> web.Response:
        _check_method(request)
        name = request.match_info["file"] or INDEX
        file = self._current().get(name)
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

    def _current(self) -> Mapping[str, File]:
        """Return the files. A dashboard that is built while the server runs is read at the first
        request after the build, which appears as a whole."""
        if not is_built(self._files):
            self._files = read_files(self._folder)
        return self._files


def _check_method(request: web.Request) -> None:
    if request.method not in READ:
        detail = {"allow": list(READ)}
        raise MethodNotAllowed(f"expected GET or HEAD, got {request.method}", detail=detail)
