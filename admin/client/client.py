"""Typed calls of the admin API and of functions."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote, urlencode

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

CALL_S: Final = 30.0
ADVICE_S: Final = 150.0
"""Slightly longer than a server takes at most to compute an advice."""
UPLOAD_S: Final = 300.0
"""Max seconds without progress: a server syncs gigabytes, or copies and checks its database."""
EVENTS_SILENT_S: Final = 8.0
"""Seconds without an event after which a connection counts as dead; a server beats every second."""
_PATH_SAFE: Final = "/?&=%:@!$'()*+,;~[]"
"""Characters of a path with its query that are sent as they are (RFC 3986)."""
HOST_S: Final = 180.0
"""Slightly longer than a server takes at most to log in to a host and check it."""
PAGES_MAX: Final = 1000
"""Max pages read of a list: a million items."""


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

    def session(self) -> dict[str, Any]:
        """Return the scopes of this client's key, and the server's version."""
        return self._json("GET", "/admin/v1/session")

    def describe(self, ref: str) -> dict[str, Any]:
        """Return the public description of `ref` (a function or revision): signature, types."""
        return self._json("GET", f"/fn/{quote(ref, safe='@')}")

    def sample(self, ref: str) -> Payload:
        """Return a sample body for function or revision `ref`: its own, or zeros."""
        path = f"/admin/v1/functions/{_part(ref)}/sample"
        reply = check(self._exchange("GET", path))
        return Payload(reply.body, reply.headers.get("Content-Type", ""))

    def functions(self) -> list[dict[str, Any]]:
        """Return every function with its state."""
        return self._items("/admin/v1/functions")

    def function_names(self) -> list[str]:
        """Return the names of the functions on the first page of the list."""
        items = self._json("GET", "/admin/v1/functions").get("items")
        return [str(item["name"]) for item in items] if isinstance(items, list) else []

    def function(self, name: str) -> dict[str, Any]:
        """Return one function: state, limits, signature, revisions."""
        return self._json("GET", f"/admin/v1/functions/{_part(name)}")

    def remove(self, name: str) -> dict[str, Any]:
        """Remove a function with all its revisions."""
        return self._json("DELETE", f"/admin/v1/functions/{_part(name)}")

    def rescale(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change the scaling of a function; return it. The request fails if the
        function changes meanwhile."""
        path = f"/admin/v1/functions/{_part(name)}"
        tag = check(self._exchange("GET", path)).headers.get("ETag", "")
        return self._json("PATCH", path, changes, headers={"If-Match": tag})

    def roll_back(
        self, name: str, to: int | None, breaking: bool, *, now: bool = False
    ) -> dict[str, Any]:
        """Move the traffic to revision `to` (None: the previous one), if `now` without a wait for
        open exchanges of a server; return the operation."""
        path = f"/admin/v1/functions/{_part(name)}/rollback"
        return _operation(
            self._json(
                "POST", path, {"to": to, "breaking": breaking, **({"now": True} if now else {})}
            )
        )

    def warm(self, name: str, wait_s: int) -> dict[str, Any]:
        """Wait up to `wait_s` seconds for a ready replica; return how long it took."""
        path = f"/admin/v1/functions/{_part(name)}/warm?{urlencode({'wait': wait_s})}"
        return self._json("POST", path, timeout_s=self._timeout_s + wait_s)

    def prepare(self, name: str, *, now: bool) -> dict[str, Any]:
        """Ask for the compiled model of a function, if `now` before all others; return it with its
        build."""
        return self._json("POST", f"/admin/v1/functions/{_part(name)}/prepare", {"now": now})

    def put_to_sleep(self, name: str, *, force: bool = False) -> dict[str, Any]:
        """Stop idle replicas now, with `force` also those with calls, which they finish; return how
        many were asked to stop, and how many stay and why."""
        wanted = {"force": True} if force else None
        return self._json("POST", f"/admin/v1/functions/{_part(name)}/sleep", wanted)

    def park(self, name: str, wait_s: int) -> dict[str, Any]:
        """Park idle replicas; return how many were asked, sleep and stay and why, once they sleep
        or `wait_s` seconds have passed."""
        path = f"/admin/v1/functions/{_part(name)}/park?{urlencode({'wait': wait_s})}"
        return self._json("POST", path, timeout_s=self._timeout_s + wait_s)

    def unpark(self, name: str, wait_s: int) -> dict[str, Any]:
        """Wake a parked replica, and wait up to `wait_s` seconds until it is ready; return how long
        it took."""
        path = f"/admin/v1/functions/{_part(name)}/unpark?{urlencode({'wait': wait_s})}"
        return self._json("POST", path, timeout_s=self._timeout_s + wait_s)

    def why(self, name: str) -> dict[str, Any]:
        """Return a function's state and reason, latest decisions, cold starts and intervals."""
        return self._json("GET", f"/admin/v1/functions/{_part(name)}/why")

    def ticket(self, name: str, path: str = "/") -> dict[str, Any]:
        """Return a ticket for a function's pages, and the address that takes it."""
        return self._json("POST", f"/admin/v1/functions/{_part(name)}/tickets", {"path": path})

    def advice(self, name: str, hours: int) -> dict[str, Any]:
        """Return the costs and savings of other idle times over the last `hours`."""
        path = f"/admin/v1/functions/{_part(name)}/advice?{urlencode({'hours': hours})}"
        return self._json("GET", path, timeout_s=ADVICE_S)

    def errors(self, name: str) -> list[dict[str, Any]]:
        """Return a function's latest errors, newest first."""
        return self._items(f"/admin/v1/functions/{_part(name)}/errors")

    def logs(self, name: str, lines: int) -> list[dict[str, Any]]:
        """Return the last `lines` lines of each replica's output."""
        return self._items(f"/admin/v1/functions/{_part(name)}/logs?{urlencode({'lines': lines})}")

    def follow_logs(
        self, name: str, lines: int, last_id: str = ""
    ) -> AbstractContextManager[Iterator[Event]]:
        """Stream the output of a function's replicas, from the last `lines` lines of each, or after
        the event `last_id`."""
        path = f"/admin/v1/functions/{_part(name)}/logs?{urlencode({'lines': lines})}"
        return self.stream(path, last_id)

    def stream(self, path: str, last_id: str = "") -> AbstractContextManager[Iterator[Event]]:
        """Stream the events of `path` ("/admin/v1/events"); see `admin.client.sse`."""
        return self._stream(path, last_id)

    def events(self, last_id: str = "") -> AbstractContextManager[Iterator[Event]]:
        """Stream the server's changes after the event `last_id`, or after a snapshot."""
        return self._stream("/admin/v1/events", last_id, EVENTS_SILENT_S)

    def kept_connection(self) -> AbstractContextManager[None]:
        """Use one connection for the exchanges of the block; see `admin.client.transport`."""
        return self._transport.kept_connection()

    def has_blob(self, sha256: str, size: int) -> bool:
        """Return whether the server has that blob with that `size` in bytes."""
        reply = self._exchange("HEAD", f"/admin/v1/blobs/{_part(sha256)}?size={size}")
        if reply.status == http.client.NOT_FOUND:
            return False
        check(reply)
        return True

    def put_blob(self, sha256: str, source: BinaryIO, size: int, progress: Progress) -> None:
        """Upload `size` bytes of `source`. Raises BadBundle if it has fewer."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        path = f"/admin/v1/blobs/{_part(sha256)}"
        check(self._exchange("PUT", path, pieces(source, size, progress), headers, UPLOAD_S))

    def create_revision(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Start a deploy; return the operation."""
        path = f"/admin/v1/functions/{_part(name)}/revisions"
        return _operation(self._json("POST", path, request))

    def operations(self) -> list[dict[str, Any]]:
        """Return the operations that run and the latest that have ended, newest first."""
        return self._items("/admin/v1/operations")

    def operation(self, id: str, wait_s: int = 0, phase: str = "") -> dict[str, Any]:
        """Return an operation; with `wait_s`, once its state or its `phase` has changed."""
        query = urlencode({"wait": wait_s, "phase": phase}) if wait_s else ""
        path = f"/admin/v1/operations/{_part(id)}{'?' if query else ''}{query}"
        return _operation(self._json("GET", path, timeout_s=self._timeout_s + wait_s))

    def cancel(self, id: str) -> dict[str, Any]:
        """Request the cancellation of an operation; return it, as it may be done already."""
        return _operation(self._json("DELETE", f"/admin/v1/operations/{_part(id)}"))

    def keys(self) -> list[dict[str, Any]]:
        """Return every access key, without secrets."""
        return self._items("/admin/v1/keys")

    def add_key(self, scopes: list[str], **more: str) -> dict[str, Any]:
        """Create a key with a `note` and a `priority`; only this answer contains its secret."""
        return self._json("POST", "/admin/v1/keys", {"scopes": scopes, **more})

    def remove_key(self, id: str) -> None:
        """Revoke a key."""
        check(self._exchange("DELETE", f"/admin/v1/keys/{_part(id)}"))

    def access(self) -> dict[str, Any]:
        """Return who may call without a key."""
        return self._json("GET", "/admin/v1/access")

    def decide_access(self, openness: str) -> dict[str, Any]:
        """Decide who may call without a key: "open" for all, "closed" for none."""
        return self._json("PATCH", "/admin/v1/access", {"openness": openness})

    def rotate_admin(self) -> dict[str, Any]:
        """Replace the admin token; return the ids of both."""
        return self._json("POST", "/admin/v1/access/token")

    def prune_images(self) -> list[dict[str, Any]]:
        """Remove pulled images that no function needs; return them."""
        found = self._json("POST", "/admin/v1/images/prune", timeout_s=UPLOAD_S).get("removed")
        return found if isinstance(found, list) else []

    def environments(self) -> list[dict[str, Any]]:
        """Return every environment of Python functions."""
        return self._items("/admin/v1/environments")

    def environment(self, id: str) -> dict[str, Any]:
        """Return an environment with its packages, by the beginning of its id."""
        return self._json("GET", f"/admin/v1/environments/{_part(id)}")

    def remove_environment(self, id: str) -> dict[str, Any]:
        """Remove an environment that nothing live names; return what named it."""
        return self._json("DELETE", f"/admin/v1/environments/{_part(id)}", timeout_s=UPLOAD_S)

    def prune_environments(self) -> list[dict[str, Any]]:
        """Remove the environments that no revision names; return them."""
        found = self._json("POST", "/admin/v1/environments/prune", timeout_s=UPLOAD_S)
        removed = found.get("removed")
        return removed if isinstance(removed, list) else []

    def hosts(self) -> list[dict[str, Any]]:
        """Return every host, the server's own machine first."""
        return self._items("/admin/v1/hosts")

    def host(self, name: str) -> dict[str, Any]:
        """Return a host with its settings."""
        return self._json("GET", f"/admin/v1/hosts/{_part(name)}")

    def add_host(self, host: dict[str, Any], *, unchecked: bool = False) -> dict[str, Any]:
        """Add a host, which the server logs in to and checks before, unless `unchecked`."""
        query = "?unchecked=true" if unchecked else ""
        return self._json("POST", f"/admin/v1/hosts{query}", host, timeout_s=HOST_S)

    def change_host(
        self, name: str, changes: dict[str, Any], *, unchecked: bool = False
    ) -> dict[str, Any]:
        """Change a host; return it."""
        query = "?unchecked=true" if unchecked else ""
        path = f"/admin/v1/hosts/{_part(name)}{query}"
        return self._json("PATCH", path, changes, timeout_s=HOST_S)

    def remove_host(self, name: str, *, force: bool = False) -> dict[str, Any]:
        """Remove a host; return its name under `removed`, or None there while it drains."""
        query = "?force=true" if force else ""
        return self._json("DELETE", f"/admin/v1/hosts/{_part(name)}{query}")

    def check_host(self, name: str) -> list[dict[str, Any]]:
        """Return the results of all checks of a host."""
        found = self._json("POST", f"/admin/v1/hosts/{_part(name)}/check", timeout_s=HOST_S)
        items = found.get("items")
        return items if isinstance(items, list) else []

    def secrets(self) -> list[dict[str, Any]]:
        """Return every secret, without values."""
        return self._items("/admin/v1/secrets")

    def set_secret(self, name: str, value: str) -> dict[str, Any]:
        """Create a secret or replace its value; return which functions still have the old one."""
        return self._json("POST", "/admin/v1/secrets", {"name": name, "value": value})

    def remove_secret(self, name: str, *, force: bool = False) -> dict[str, Any]:
        """Remove a secret, with `force` even if a function needs it; return what needs it."""
        query = "?force=true" if force else ""
        return self._json("DELETE", f"/admin/v1/secrets/{_part(name)}{query}")

    def aliases(self, function: str = "") -> list[dict[str, Any]]:
        """Return the aliases of a function, or of all."""
        query = f"?{urlencode({'function': function})}" if function else ""
        return self._items(f"/admin/v1/aliases{query}")

    def usage(self, by: str, since: str, function: str = "") -> dict[str, Any]:
        """Return the usage of models by `function` or `key`, of one function or of all."""
        query = {"by": by, "since": since, **({"function": function} if function else {})}
        return self._json("GET", f"/admin/v1/usage?{urlencode(query)}")

    def cost(self, by: str, since: str, function: str = "") -> dict[str, Any]:
        """Return device-seconds, energy and costs by `function` or `key`, of one function or of
        all."""
        query = {"by": by, "since": since, **({"function": function} if function else {})}
        return self._json("GET", f"/admin/v1/cost?{urlencode(query)}")

    def add_alias(self, function: str, alias: str) -> dict[str, Any]:
        """Give a function's model a further name; return whether it is new."""
        return self._json("POST", "/admin/v1/aliases", {"function": function, "alias": alias})

    def remove_alias(self, alias: str) -> dict[str, Any]:
        """Remove an alias; return the function that had it."""
        return self._json("DELETE", f"/admin/v1/aliases?{urlencode({'alias': alias})}")

    def backup(self, write: Callable[[bytes], object]) -> None:
        """Download a copy of the database in pieces."""
        self._transport.download("/admin/v1/backup", write, UPLOAD_S)

    def replicas(self) -> list[dict[str, Any]]:
        """Return every replica."""
        return self._items("/admin/v1/replicas")

    def pools(self) -> list[dict[str, Any]]:
        """Return every pool."""
        return self._items("/admin/v1/pools")

    def devices(self) -> list[dict[str, Any]]:
        """Return every device."""
        return self._items("/admin/v1/devices")

    def ready(self) -> dict[str, Any]:
        """Return the server's readiness with its reasons."""
        return self._json("GET", "/readyz")

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

    def _items(self, path: str) -> list[dict[str, Any]]:
        """Return every item of a list, page by page."""
        found: list[dict[str, Any]] = []
        asked = path
        for _ in range(PAGES_MAX):
            page = self._json("GET", asked)
            items = page.get("items")
            found += items if isinstance(items, list) else []
            if not page.get("next"):
                return found
            separator = "&" if "?" in path else "?"
            asked = f"{path}{separator}{urlencode({'next': page['next']})}"
        raise Unreachable(f"{self.url}{path}: the list does not end after {PAGES_MAX} pages")

    def _json(
        self,
        method: str,
        path: str,
        body: object = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        given = {"Accept": "application/json", **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            given["Content-Type"] = "application/json"
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


def _part(text: str) -> str:
    return quote(text, safe="")


def _operation(document: dict[str, Any]) -> dict[str, Any]:
    inner = document.get("operation", document)
    return inner if isinstance(inner, dict) else {"id": inner, "state": "running"}


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
