"""A client of the API server of a cluster: typed objects, and a limit for everything.

Own and small: kubernetes_asyncio takes 1.8 s and 71 MB to be imported (2026-11-28).
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from hosts.errors import shown
from hosts.keepalive import KEEPALIVE
from hosts.kubernetes.access import Access
from hosts.kubernetes.errors import EXPIRED, TOO_MANY, ApiAway, ApiRefused, WatchLost
from hosts.kubernetes.objects import PODS, Kind, Listed, Object, ObjectT, Status, WatchEvent

T = TypeVar("T")

JSON: Final = "application/json"
STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
"""A patch whose lists are merged by the names of their members, such as those of containers."""
STATUS_MAX: Final = 64 * 1024
"""Max bytes that are read of the answer to a refused request."""
CONTINUE_MAX: Final = 4096
"""Max characters of the token of a list's next page: it becomes a part of a URL."""


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits of a client; times in seconds, sizes in bytes."""

    connect_s: float = 5.0
    """For a connection with its TLS handshake."""
    request_s: float = 30.0
    """From the call of a method to its whole answer, waits and repetitions included; for a list,
    each page; for a watch, until the API server has accepted it."""
    watch_s: float = 600.0
    """Max length of a watch: the API server is asked to end it after half of that or more."""
    silence_s: float = 90.0
    """Without one byte in a watch: the API server sends a bookmark about every minute."""
    requests: int = 32
    """Requests at the same time, watches apart."""
    waiting: int = 1024
    """Requests that wait for one of these places or have it."""
    watches: int = 16
    """Watches at the same time."""
    page: int = 500
    """Objects of a page of a list."""
    pages: int = 200
    """Pages of a list."""
    page_bytes: int = 32 * 1024 * 1024
    """Of one page."""
    object_bytes: int = 4 * 1024 * 1024
    """Of one object, and of one line of a watch. etcd stores 1.5 MiB in a denser form."""
    log_bytes: int = 64 * 1024 * 1024
    """That are read of a container's output; the kubelet keeps 10 MiB unless told otherwise."""
    repetitions: int = 4
    """Of a request that is answered by 429, and of a list whose pages expire."""
    retry_s: float = 1.0
    """Wait after a 429 that does not say how long."""
    retry_max_s: float = 10.0
    """Max wait after a 429, whatever it says."""


class _Request(NamedTuple):
    """A request, as it is sent and counted."""

    verb: str
    kind: str
    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON


class KubernetesClient:
    """Asks the API server of a cluster. Event loop thread only; `close` frees its connections.

    Methods raise ApiRefused if the API server refuses (4xx): then nothing has changed. They raise
    ApiAway if there is no usable answer: then a write may have taken effect or not, also after 5xx,
    and after an answer that came too late. A 429 is repeated within the limits. Neither redirects
    nor proxies are followed, and no time of the API server is used.
    """

    def __init__(
        self,
        access: Access,
        limits: ApiLimits | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`chance` returns a number between 0 and 1, by which waits and watches differ."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests sent, by verb (get, list, watch, create, delete, patch, log) and kind (Pod)."""
        self._access, self._chance = access, chance
        self._limits = limits or ApiLimits()
        self._turns = asyncio.Semaphore(self._limits.requests)
        self._waiting = self._watches = 0
        self._opened: aiohttp.ClientSession | None = None

    async def get(self, kind: Kind[ObjectT], name: str) -> ObjectT:
        """Return an object."""
        request = _Request("get", kind.name, "GET", self._path(kind, name))
        return object_of(kind, await self._answer(request, self._limits.object_bytes))

    async def list(self, kind: Kind[ObjectT], selector: str = "") -> tuple[dict[str, ObjectT], str]:
        """Return all objects by name, and the resource version from which a watch goes on.

        `selector` is one of labels, "" for none. If the pages expire half-way, which the API server
        does after some minutes, the list begins anew.
        """
        for _ in range(self._limits.repetitions):
            try:
                return await self._pages(kind, selector)
            except ApiRefused as error:
                if error.code != EXPIRED:
                    raise
        raise ApiAway(f"the pages of a list of {kind.plural} expire before they are read")

    @asynccontextmanager
    async def watch(
        self, kind: Kind[Any], version: str, selector: str = ""
    ) -> AsyncGenerator[AsyncIterator[WatchEvent], None]:
        """Open a watch of the changes since a resource version; it is entered when the API server
        has accepted it. Its events end when the API server ends it, which is usual; they raise
        WatchLost after silence and for a line that is no event, ApiAway if the connection breaks.

        A version that is too old is ApiRefused with 410, or an event ERROR with a Status of 410.
        """
        limits = self._limits
        if self._watches >= limits.watches:
            raise ApiAway(f"more than {limits.watches} watches at the same time")
        length_s = limits.watch_s * (0.5 + 0.5 * self._chance())
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(length_s))),
        } | _selecting(selector)
        request = _Request("watch", kind.name, "GET", self._path(kind), query)
        self._watches += 1
        try:
            async with asyncio.timeout(limits.request_s) as opening:
                async with self._accepted(request) as response:
                    # The API server may be late with the end that it was asked for.
                    opening.reschedule(
                        asyncio.get_running_loop().time() + length_s + limits.request_s
                    )
                    async with aclosing(self._events(response)) as events:
                        yield events
        except TimeoutError as error:
            if not opening.expired():
                raise
            raise ApiAway("a watch was not accepted, or did not end, in time") from error
        finally:
            self._watches -= 1

    async def create(
        self, kind: Kind[ObjectT], object: ObjectT, *, dry_run: bool = False
    ) -> ObjectT:
        """Make an object, whose `api_version` and `kind` are filled in, and return it as the API
        server has it. `dry_run`: only say whether it could be made. A name that exists is
        ApiRefused with 409, AlreadyExists."""
        whole = msgspec.structs.replace(object, api_version=kind.api_version, kind=kind.name)
        query = {"dryRun": "All"} if dry_run else {}
        body = msgspec.json.encode(whole)
        request = _Request("create", kind.name, "POST", self._path(kind), query, body)
        return object_of(kind, await self._answer(request, self._limits.object_bytes))

    async def delete(
        self, kind: Kind[Any], name: str, *, uid: str = "", grace_s: int | None = None
    ) -> None:
        """Ask for the end of an object, within `grace_s` seconds; None for the object's own time.

        `uid`: of which it has to be, else ApiRefused with 409, Conflict. One that is gone is
        ApiRefused with 404, NotFound.
        """
        options: dict[str, object] = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body, path = msgspec.json.encode(options), self._path(kind, name)
        request = _Request("delete", kind.name, "DELETE", path, body=body)
        # The object, as it is until its end, or a Status.
        if not decoded(Object, await self._answer(request, self._limits.object_bytes)).kind:
            raise ApiAway("an answer that is none of the API's: it has no kind")

    async def patch(
        self, kind: Kind[ObjectT], name: str, body: object, *, subresource: str = ""
    ) -> ObjectT:
        """Change an object by a strategic merge patch, a Part or a dict; return it as it is
        then."""
        request = _Request(
            "patch",
            kind.name,
            "PATCH",
            self._path(kind, name, subresource),
            body=msgspec.json.encode(body),
            content_type=STRATEGIC_MERGE,
        )
        return object_of(kind, await self._answer(request, self._limits.object_bytes))

    async def log(self, pod: str, container: str, limit_bytes: int, since_s: int = 0) -> bytes:
        """Return the last `limit_bytes` of the output of a container, each line behind its
        timestamp and a space; of that since a time (Unix seconds) by the clock of its node."""
        path = self._path(PODS, pod, "log")
        query = {"container": container, "timestamps": "true"}
        if since_s:
            query["sinceTime"] = f"{datetime.fromtimestamp(since_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        request = _Request("log", PODS.name, "GET", path, query, accept=f"{JSON}, */*")
        return await self._answer(request, self._limits.log_bytes, last=limit_bytes)

    async def close(self) -> None:
        """Close all connections; requests that are under way fail."""
        if self._opened is not None:
            await self._opened.close()

    # Requests

    async def _pages(self, kind: Kind[ObjectT], selector: str) -> tuple[dict[str, ObjectT], str]:
        query = {"limit": str(self._limits.page)} | _selecting(selector)
        objects: dict[str, ObjectT] = {}
        for _ in range(self._limits.pages):
            request = _Request("list", kind.name, "GET", self._path(kind), query)
            data = await self._answer(request, self._limits.page_bytes)
            # A generic alias of a type that is only known here.
            page: Listed[ObjectT] = decoded(cast(Any, Listed)[kind.type], data)
            objects |= {found.metadata.name: found for found in page.items or ()}
            following = page.metadata.continue_
            if not following:
                if not page.metadata.resource_version:
                    raise ApiAway(f"a list of {kind.plural} without a resource version")
                return objects, page.metadata.resource_version
            if len(following) > CONTINUE_MAX:
                break
            query["continue"] = following
        raise ApiAway(f"a list of {kind.plural} is longer than {self._limits.pages} pages")

    async def _answer(self, request: _Request, limit_bytes: int, last: int | None = None) -> bytes:
        """Return the whole answer to a request; its last bytes if `last` is given, of as much as
        the limit allows to read."""
        limits = self._limits
        if self._waiting >= limits.waiting:
            raise ApiAway(f"more than {limits.waiting} requests wait for the API server")
        self._waiting += 1
        try:
            async with asyncio.timeout(limits.request_s):
                async with self._turns, self._accepted(request) as response:
                    if last is None:
                        return await _body(response, limit_bytes)
                    return await _end(response, limit_bytes, last)
        except TimeoutError as error:
            raise ApiAway(f"no answer within {limits.request_s:g} s") from error
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def _accepted(self, request: _Request) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Send a request, repeat it after 429, and yield the response if it is no refusal."""
        for left in reversed(range(self._limits.repetitions + 1)):
            async with self._sent(request) as response:
                if response.status != TOO_MANY or not left:
                    await _check(response)
                    yield response
                    return
                wait_s = retry_s(response.headers.get("Retry-After", ""), self._limits)
            # Between this wait and twice of it: all who were refused come back apart.
            await asyncio.sleep(wait_s * (1.0 + self._chance()))

    @asynccontextmanager
    async def _sent(self, request: _Request) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Send a request once, and yield the response whatever it is."""
        url = self._access.base_url + request.path
        if request.query:
            url += "?" + urlencode(request.query, quote_via=quote)
        headers = {
            "Authorization": f"Bearer {self._access.token()}",
            "Accept": request.accept,
            # No answer is unpacked: its size is what it costs.
            "Accept-Encoding": "identity",
            "User-Agent": "fngate",
        }
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        self.requests[request.verb, request.kind] += 1
        with _usable():
            response = await self._session().request(
                request.method,
                URL(url, encoded=True),
                data=request.body,
                headers=headers,
                ssl=self._access.context(),
                allow_redirects=False,
            )
        try:
            yield response
        finally:
            # The connection is used again if the answer was read to its end, and closed if not.
            response.release()

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None or self._opened.closed:
            limits = self._limits
            connector = aiohttp.TCPConnector(
                limit=limits.requests + limits.watches,
                keepalive_timeout=30.0,
                socket_factory=_socket,
            )
            self._opened = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._opened

    def _path(self, kind: Kind[Any], name: str | None = None, subresource: str = "") -> str:
        """Return the path of a kind's objects, or of the one with `name`."""
        root = "/apis/" if "/" in kind.api_version else "/api/"
        path = root + kind.api_version
        if kind.is_namespaced:
            path += f"/namespaces/{self._access.namespace()}"
        path += f"/{kind.plural}"
        if name is not None:
            if name in ("", ".", ".."):
                raise ApiRefused(404, "NotFound", f"{kind.name} {name!r}: not a name")
            path += "/" + quote(name, safe="")
        return f"{path}/{subresource}" if subresource else path

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[WatchEvent, None]:
        """Yield the lines of a watch: a JSON object each."""
        limits, rest = self._limits, bytearray()
        while True:
            try:
                async with asyncio.timeout(limits.silence_s):
                    piece = await _piece(response)
            except TimeoutError as error:
                raise WatchLost(f"nothing in a watch for {limits.silence_s:g} s") from error
            if not piece:
                return
            for part in piece.splitlines(keepends=True):
                rest += part
                if len(rest) > limits.object_bytes:
                    raise WatchLost(f"a line of a watch with over {limits.object_bytes} bytes")
                if part.endswith(b"\n"):
                    if rest.strip():
                        yield _event(bytes(rest))
                    rest.clear()


def retry_s(text: str, limits: ApiLimits) -> float:
    """Return how many seconds to wait after 429; `text` is its Retry-After, "" without one. That
    may be a date as well (RFC 9110 section 10.2.3), which would need the API server's clock: only
    seconds are understood."""
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return min(float(text) if is_number else limits.retry_s, limits.retry_max_s)


def _selecting(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


def _socket(address: Any) -> socket.socket:
    """Return the socket of a connection; `address` is as of `getaddrinfo`."""
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    for option in KEEPALIVE:
        sock.setsockopt(*option)
    return sock


@contextmanager
def _usable() -> Iterator[None]:
    """Turn what goes wrong on a connection into ApiAway."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        where = f"{error.host}:{error.port}"
        raise ApiAway(shown(f"{where}: wrong certificate: {error.certificate_error}")) from error
    except aiohttp.ClientConnectorError as error:
        inner = error.os_error
        # asyncio's own text repeats the address; names and TLS have numbers of their own.
        is_system = inner.errno and not isinstance(inner, ssl.SSLError | socket.gaierror)
        reason = os.strerror(inner.errno or 0) if is_system else inner
        raise ApiAway(shown(f"{error.host}:{error.port}: {reason}")) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ApiAway(shown(error) or type(error).__name__) from error


async def _piece(response: aiohttp.ClientResponse) -> bytes:
    """Return what has come of an answer, at least a byte; b"" at its end."""
    with _usable():
        return await response.content.readany()


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise ApiRefused or ApiAway if an answer is not what was asked for."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiAway("an answer that is packed, which was not asked for")
    if response.status < 300:
        return
    if response.status < 400:
        raise ApiAway(f"{response.status}: a redirect, which is not followed")
    data = await _end(response, STATUS_MAX, STATUS_MAX)
    try:
        status = msgspec.json.decode(data, type=Status)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # Such as `404 page not found`, if the API server does not have the kind.
        status = Status(message=data.decode("utf-8", "replace"))
    if response.status >= 500:
        what = f"{response.status} {status.reason}".rstrip()
        raise ApiAway(shown(f"{what}: {status.message}"))
    raise ApiRefused(response.status, status.reason, status.message)


async def _body(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    data = bytearray()
    while piece := await _piece(response):
        data += piece
        if len(data) > limit_bytes:
            raise ApiAway(f"an answer of more than {limit_bytes} bytes")
    return bytes(data)


async def _end(response: aiohttp.ClientResponse, limit_bytes: int, last: int) -> bytes:
    """Return the last bytes of an answer, of as much as is read."""
    end, read = bytearray(), 0
    while read < limit_bytes and (piece := await _piece(response)):
        read += len(piece)
        end += piece
        del end[: max(0, len(end) - last)]
    return bytes(end)


def object_of(kind: Kind[ObjectT], data: bytes | msgspec.Raw) -> ObjectT:
    """Return an object of a kind that the API server has sent. Raises ApiAway if it is none."""
    found = decoded(kind.type, data)
    if found.kind != kind.name:
        raise ApiAway(shown(f"an answer that is no {kind.name}: its kind is {found.kind!r}"))
    return found


def _event(line: bytes) -> WatchEvent:
    try:
        return decoded(WatchEvent, line)
    except ApiAway as error:
        raise WatchLost(str(error)) from error


@cache
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)


def decoded(type: type[T], data: bytes | msgspec.Raw) -> T:
    """Return an object that the API server has sent. Raises ApiAway if it is none."""
    try:
        return cast(T, _decoder(cast(Any, type)).decode(data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiAway(shown(f"an answer that is none of the API's: {error}")) from error
