"""Fake admin API: an HTTP server with canned answers."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.admin_documents import answer_of, filled

MISTAKES = 400
READ_S = 5.0
BLOBS = "/admin/v1/blobs/"


@dataclass(frozen=True)
class Request:
    """A request as received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body decoded as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Canned:
    """One canned answer. A `body` other than bytes is sent as JSON.

    `reads` False leaves the request's body unread. `is_cut` closes the connection instead of
    answering. `lacks`: bytes that Content-Length announces but that are not sent. `before` is
    called after the request was read and before it is answered.
    """

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reads: bool = True
    is_cut: bool = False
    lacks: int = 0
    before: Callable[[], None] | None = None

    @property
    def data(self) -> bytes:
        """Return the body as bytes."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    @property
    def content_type(self) -> str:
        """Return the default Content-Type; `headers` may override it."""
        if isinstance(self.body, bytes):
            return "application/octet-stream"
        return "application/json" if self.status < 400 else "application/problem+json"


class _Server(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connection errors: some tests hang up early on purpose."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class AdminApi:
    """HTTP server on a free loopback port, open until `close`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.takes_blobs = False
        self._answers: dict[tuple[str, str], deque[Canned]] = {}
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def on(self, method: str, path: str, *answers: Canned) -> None:
        """Answer `method path` with these in turn; the last one repeats. Members that a document of
        the admin API lacks are added, with neutral values."""
        kind = answer_of(method, path)
        self._answers[method, path] = deque(
            replace(one, body=filled(kind, one.body))
            if kind is not None and one.status < MISTAKES and isinstance(one.body, dict)
            else one
            for one in answers
        )

    def body(self, method: str, path: str) -> Any:
        """Return the body of the latest answer to `method path`."""
        return self._answers[method, path][-1].body

    def sent(self, method: str, path: str = "") -> list[Request]:
        """Return the received requests with that method and, if given, that path."""
        return [r for r in self.requests if r.method == method and path in ("", r.path)]

    def close(self) -> None:
        """Stop listening and join the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str) -> Canned:
        """Return the next answer to `method path`. With `takes_blobs` every blob is missing (404)
        and every upload accepted (201)."""
        if self.takes_blobs and path.startswith(BLOBS):
            return Canned({}, 404 if method == "HEAD" else 201)
        answers = self._answers.get((method, path))
        if not answers:
            return Canned({"title": "Not found", "code": "unknown", "detail": path}, 404)
        return answers.popleft() if len(answers) > 1 else answers[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = READ_S

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                canned = api.answer(self.command, parts.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if canned.reads else b""
                query = dict(parse_qsl(parts.query, keep_blank_values=True))
                headers = dict(self.headers.items())
                api.requests.append(Request(self.command, parts.path, query, headers, body))
                if canned.is_cut or not canned.reads:
                    self.close_connection = True
                if canned.before:
                    canned.before()
                if canned.is_cut:
                    return
                self.send_response(canned.status)
                head = {"Content-Type": canned.content_type, **canned.headers}
                length = len(canned.data) + canned.lacks
                for name, value in {**head, "Content-Length": str(length)}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(canned.data)

            do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        return Handler
