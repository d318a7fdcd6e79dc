"""Typed calls of the admin API and of functions."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from admin import documents as d
from admin.client import routes
from admin.client.document import Document
from admin.client.routes import BodyRoute, ListRoute, Route
from admin.client.transport import (
    REFUSAL_MAX,
    SHOWN_MAX,
    ApiError,
    Dial,
    Endpoint,
    Progress,
    Reply,
    Transport,
    Unreachable,
    Verify,
    check,
    json_object,
    pieces,
)

if TYPE_CHECKING:
    from admin.client.sse import Event

__all__ = ["Answer", "ApiError", "Client", "Payload", "Progress", "Unreachable"]

T = TypeVar("T")
B = TypeVar("B")
Headers = Mapping[str, str]
ADMIN: Final = "/admin/v1"
"""Prefix of the admin API's paths."""
BLOB: Final = "/blobs/{}"
JSON: Final = "application/json"
CALL_S: Final = 30.0
EVENTS_SILENT_S: Final = 8.0
"""Seconds without an event after which a connection counts as dead; a server beats every second."""
_PATH_SAFE: Final = "/?&=%:@!$'()*+,;~[]"
"""Characters of a path with its query that are sent as they are (RFC 3986)."""
PAGES_MAX: Final = 1000
"""Max pages read of a list: a million items."""
_NONE: Final[Headers] = {}


@dataclass(frozen=True, slots=True)
class Payload:
    """Request body with its content type."""

    body: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a function. `timing` is the Server-Timing header, "" without one."""

    body: bytes
    content_type: str
    timing: str


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Request to a function's server. `path` begins with a slash and may have a query. `body` may
    be a file, if `headers` have its Content-Length."""

    path: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | BinaryIO | None = None


class Client:
    """Client of the server at `url` ("http://HOST:PORT", optionally with a path prefix).

    `key`, `dial` and `verify` as of `Transport`. Raises ValueError for an invalid URL or key. Every
    request raises ApiError or Unreachable.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        timeout_s: float = CALL_S,
        dial: Dial | None = None,
        verify: Verify | None = None,
    ) -> None:
        self.url = url
        self.is_direct = dial is None
        """True if other programs here can also reach the server by `url`."""
        self._transport = Transport(url, key, dial, verify)
        self._timeout_s = timeout_s

    def is_open_to_all(self, name: str) -> bool:
        """Return whether callers without a key may call `name` at `url`."""
        try:
            Client(self.url, None, self._timeout_s).describe(name)
        except ApiError:
            return False
        return True

    @property
    def endpoint(self) -> Endpoint:
        """The server's address for another program."""
        return self._transport.endpoint

    def call(
        self, route: Route[T], *names: str, wait_s: int = 0, **query: str | int
    ) -> Document[T]:
        """Return the answer of a route. `names` are put into its path. `wait_s`: seconds that the
        server may take on top. Values of the `query` that are empty are left out."""
        return self._call(route, names, {"wait": wait_s, **query}, wait_s=wait_s)

    def submit(
        self,
        route: BodyRoute[T, B],
        *names: str,
        body: B,
        headers: Headers = _NONE,
        **query: str | int,
    ) -> Document[T]:
        """Send a body, as `call`."""
        return self._call(route, names, query, body, headers)

    def items(self, route: ListRoute[T], *names: str, **query: str | int) -> Document[list[T]]:
        """Return every item of a list, page by page; else as `call`."""
        path = _path(route.path, names)
        found = list(self._pages(route, path, query))
        return Document(
            {"items": found},
            lambda: [_decoded(one, route.item()) for one in found],
            f"{route.method} {path}",
            self._release,
        )

    def _pages(
        self, route: ListRoute[T], path: str, query: Mapping[str, str | int]
    ) -> Iterator[object]:
        cursor = ""
        for _ in range(PAGES_MAX):
            asked = path + _query({**query, "next": cursor})
            page = self._json(route.method, asked, timeout_s=route.timeout_s)
            items = page.get("items")
            yield from items if isinstance(items, list) else []
            if not (cursor := str(page.get("next") or "")):
                return
        raise Unreachable(f"{self.url}{path}: the list does not end after {PAGES_MAX} pages")

    def names(self, things: str, member: str) -> list[str]:
        """Return a member of the items on the first page of a list, for the shell's completion."""
        items = self._json("GET", f"{ADMIN}/{things}").get("items")
        rows = items if isinstance(items, list) else []
        return [str(one[member]) for one in rows if isinstance(one, dict) and member in one]

    def rescale(
        self, name: str, changes: d.requests.ScalingRequest
    ) -> Document[d.functions.Scaled]:
        """Change the scaling of a function. The request fails if the function changes meanwhile."""
        read = self._exchange("GET", _path(routes.FUNCTION.path, (name,)))
        headers = {"If-Match": check(read).headers.get("ETag", "")}
        return self.submit(routes.SCALE, name, body=changes, headers=headers)

    def describe(self, ref: str) -> dict[str, Any]:
        """Return the public description of `ref` (a function or revision): signature, types."""
        return self._json("GET", f"/fn/{quote(ref, safe='@')}")

    def ready(self) -> dict[str, object]:
        """Return the server's readiness with its reasons."""
        return self._json("GET", "/readyz")

    def sample(self, ref: str) -> Payload:
        """Return a sample body for function or revision `ref`: its own, or zeros."""
        reply = check(self._exchange("GET", _path("/functions/{}/sample", (ref,))))
        return Payload(reply.body, reply.headers.get("Content-Type", ""))

    def backup(self, write: Callable[[bytes], object]) -> None:
        """Download a copy of the database in pieces."""
        self._transport.download(f"{ADMIN}/backup", write, routes.UPLOAD_S)

    def follow_logs(
        self, name: str, lines: int, last_id: str = ""
    ) -> AbstractContextManager[Iterator[Event]]:
        """Stream the output of a function's replicas, from the last `lines` lines of each, or after
        the event `last_id`."""
        return self.stream(_path(routes.LOGS.path, (name,)) + _query({"lines": lines}), last_id)

    def stream(self, path: str, last_id: str = "") -> AbstractContextManager[Iterator[Event]]:
        """Stream the events of `path` ("/admin/v1/events"); see `admin.client.sse`."""
        return self._stream(path, last_id)

    def events(self, last_id: str = "") -> AbstractContextManager[Iterator[Event]]:
        """Stream the server's changes after the event `last_id`, or after a snapshot."""
        return self._stream(f"{ADMIN}/events", last_id, EVENTS_SILENT_S)

    def kept_connection(self) -> AbstractContextManager[None]:
        """Use one connection for the exchanges of the block; see `admin.client.transport`."""
        return self._transport.kept_connection()

    def has_blob(self, sha256: str, size: int) -> bool:
        """Return whether the server has that blob with that `size` in bytes."""
        reply = self._exchange("HEAD", f"{_path(BLOB, (sha256,))}?size={size}")
        if reply.status == http.client.NOT_FOUND:
            return False
        check(reply)
        return True

    def put_blob(self, sha256: str, source: BinaryIO, size: int, progress: Progress) -> None:
        """Upload `size` bytes of `source`. Raises BadBundle if it has fewer."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        body = pieces(source, size, progress)
        check(self._exchange("PUT", _path(BLOB, (sha256,)), body, headers, routes.UPLOAD_S))

    def invoke(
        self,
        ref: str,
        payload: Payload,
        *,
        accept: str = "",
        wait_s: float | None = None,
        timeout_s: float = CALL_S,
    ) -> Answer:
        """Call function or revision `ref` ("digits", "digits@3") with a limit of `timeout_s`.

        `wait_s` bounds how long the server may hold the request before it starts.
        """
        headers = {"Content-Type": payload.content_type}
        if accept:
            headers["Accept"] = accept
        if wait_s is not None:
            headers["Prefer"] = f"wait={wait_s:g}"
        path = function_path(ref)
        reply = check(self._exchange("POST", path, payload.body, headers, timeout_s))
        content_type = reply.headers.get("Content-Type", "")
        return Answer(reply.body, content_type, reply.headers.get("Server-Timing", ""))

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Reply:
        """Send a request on a new connection; return the answer, whatever its status."""
        return self._exchange(method, path, body, headers, timeout_s)

    @contextmanager
    def exchange(
        self,
        ref: str,
        request: HttpRequest,
        *,
        wait_s: float | None = None,
        timeout_s: float = CALL_S,
    ) -> Iterator[tuple[Reply, Iterator[bytes]]]:
        """Send a request to the server of function or revision `ref`, and stream its answer while
        the block runs: the head, and the body in pieces, as they arrive.

        Answers of the function's server are returned whatever their status; ApiError is raised only
        for a refusal of fngate itself. `wait_s` and `timeout_s` as in `invoke`.
        """
        headers = dict(request.headers)
        if wait_s is not None:
            headers["Prefer"] = f"wait={wait_s:g}"
        path = function_path(ref, request.path)
        opened = self._transport.stream(request.method, path, request.body, headers, timeout_s)
        with opened as (reply, pieces):
            if reply.status >= http.client.BAD_REQUEST and _is_problem(reply):
                body = b"".join(_first(pieces, REFUSAL_MAX))
                kind = str((json_object(body) or {}).get("type", ""))
                if kind.startswith("urn:fngate:"):
                    check(Reply(reply.status, reply.headers, body))
                pieces = chain([body], pieces)
            yield reply, pieces

    def _stream(
        self, path: str, last_id: str, silent_s: float | None = None
    ) -> AbstractContextManager[Iterator[Event]]:
        # Imported here, as most verbs read no stream.
        from admin.client.sse import SILENT_S, open_stream

        return open_stream(self._transport, path, last_id, silent_s or SILENT_S)

    def _call(
        self,
        route: Route[T],
        names: Sequence[str],
        query: Mapping[str, str | int],
        body: object = None,
        headers: Headers = _NONE,
        wait_s: int = 0,
    ) -> Document[T]:
        path = _path(route.path, names) + _query(query)
        limit_s = (route.timeout_s or self._timeout_s) + wait_s
        sent = self._json(route.method, path, body, headers, limit_s)
        source = f"{route.method} {path}"
        return Document(sent, lambda: _decoded(sent, route.answer()), source, self._release)

    def _release(self) -> str:
        """Return the server's version, "" if it does not say it."""
        try:
            return str(self._json("GET", f"{ADMIN}/session").get("version", ""))
        except (ApiError, Unreachable):
            return ""

    def _json(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Headers = _NONE,
        timeout_s: float | None = None,
    ) -> dict[str, object]:
        """Return the JSON object that answers a request."""
        given = {"Accept": JSON, **headers}
        data = None if body is None else msgspec.json.encode(body)
        if data is not None:
            given["Content-Type"] = JSON
        reply = check(self._exchange(method, path, data, given, timeout_s))
        found = json_object(reply.body)
        if found is None:
            shown = reply.body[:SHOWN_MAX].decode(errors="replace")
            title = "This is not an fngate server"
            detail = f"{method} {path}: expected a JSON object, got {shown!r}"
            raise ApiError(reply.status, {"title": title, "detail": detail})
        return found

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._transport.exchange(method, path, body, headers or {}, limit_s)


def function_path(ref: str, path: str = "") -> str:
    """Return the path of a call of `ref`, with the `path` of a request to its server."""
    return f"/fn/{quote(ref, safe='@')}{quote(path, safe=_PATH_SAFE)}"


def _path(path: str, names: Sequence[str]) -> str:
    """Return the path of a route of the admin API with `names` in place of {}."""
    return ADMIN + path.format(*(quote(name, safe="") for name in names))


def _query(values: Mapping[str, str | int]) -> str:
    """Return a query without the values that are empty, which is what a server takes them for."""
    given = {name: "true" if value is True else value for name, value in values.items() if value}
    return f"?{urlencode(given)}" if given else ""


def _decoded(found: object, kind: type[T]) -> T:
    """Return JSON data as `kind`. Raises msgspec.ValidationError."""
    return msgspec.convert(found, kind, str_keys=True)


def _is_problem(reply: Reply) -> bool:
    kind = reply.headers.get("Content-Type", "")
    return kind.partition(";")[0].strip().lower() == "application/problem+json"


def _first(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Yield pieces until they have `most` bytes."""
    left = most
    for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return
