"""HTTP exchanges with the standard library alone, and their errors.

Every exchange has its own connection, except within `kept_connection`, and a time limit, and reads
at most `ANSWER_MAX` bytes, except streams. Redirects are not followed: a key must not reach another
server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import msgspec

from gateway.problem_document import PartialProblem
from hosts.errors import Unreachable as Unreachable
from registry.errors import BadBundle

ANSWER_MAX: Final = 320 * 1024 * 1024
"""Max bytes of an answer; more than a server can be configured for."""
CONNECT_S: Final = 5.0
REFUSAL_MAX: Final = 1024 * 1024
"""Max bytes read of a refusal that arrives in place of a stream."""
PIECE: Final = 64 * 1024
"""Max bytes per read of a stream."""
SHOWN_MAX: Final = 500
"""Max characters shown of an answer that is not a problem document."""

CUT_HINT: Final = "see why: fnctl why NAME, fnctl logs NAME"
CHUNK: Final = 1024 * 1024
"""Bytes per read of an uploaded file."""
Progress = Callable[[int], None]
"""Receives the number of bytes sent since the last call."""
Dial = Callable[[str, int], socket.socket]
"""Connects a socket to a host and a port, or raises Unreachable."""
Verify = Callable[[socket.socket], None]
"""Raises Unreachable if the key must not be sent over a new connection."""


class ApiError(Exception):
    """The server refused the request. `sent` is its problem document, `problem` what of it is read,
    `code` its code, "" if another server answered.

    The text is "title: detail", then expected and got unless the detail contains them.
    """

    def __init__(self, status: int, sent: dict[str, object]) -> None:
        self.status, self.sent = status, sent
        try:
            self.problem = msgspec.convert(sent, PartialProblem)
        except msgspec.ValidationError:  # another server's
            title, detail, code = (str(sent.get(one) or "") for one in ("title", "detail", "code"))
            self.problem = PartialProblem(title=title, detail=detail, code=code)
        self.code = self.problem.code or ""
        super().__init__(_explain(status, self.problem))


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer: status, headers, body."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server as other programs than this client reach it: over sockets to `host` and `port`, made
    by `dial` if there is one. `prefix` precedes every path; `key` is a bearer token."""

    host: str
    port: int
    is_secure: bool
    prefix: str
    key: str | None
    dial: Dial | None

    def encode(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return a request of HTTP/1.1 as bytes. Raises ValueError for a header with a control
        character."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        given = {name.lower() for name in headers}
        head = {"Host": f"{host}:{self.port}"}
        if "host" in given:
            head = {name: value for name, value in headers.items() if name.lower() == "host"}
        if self.key and "authorization" not in given:
            head["Authorization"] = f"Bearer {self.key}"
        framing = {"content-length", "transfer-encoding", "connection"}
        head |= {name: value for name, value in headers.items() if name.lower() not in framing}
        head["Content-Length"] = str(len(body))
        lines = [f"{method} {self.prefix}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        if wrong := next((line for line in lines if not line.isprintable()), ""):
            raise ValueError(f"expected a request of printable characters, got {wrong!r}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


class Transport:
    """HTTP exchanges with the server at `url` ("http://HOST:PORT", optionally with a path prefix).

    `key` is sent as a bearer token. `dial`, if given, opens the connections, for example over SSH.
    `verify`, if given, is called with each connection that the system opened, before anything is
    sent. Raises ValueError for an invalid URL or key.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        dial: Dial | None = None,
        verify: Verify | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError(f"url: expected http://HOST:PORT, got {url!r}")
        if dial is not None and parts.scheme != "http":
            raise ValueError(f"url: expected http:// where SSH encrypts, got {url!r}")
        if key is not None and not (key and key.isascii() and key.isprintable()):
            raise ValueError("key: expected printable ASCII characters")
        self._url = url
        self._host = parts.hostname
        self._port = parts.port
        self._is_secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._key = key
        self._dial = dial
        self._verify = verify
        self._keeps = False
        self._idle: http.client.HTTPConnection | None = None
        """Kept connection between two exchanges."""

    @contextmanager
    def kept_connection(self) -> Iterator[None]:
        """Use one connection for all `exchange` of the block, as long as the server keeps it."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            if idle := self._take_idle():
                idle.close()

    @property
    def endpoint(self) -> Endpoint:
        """The server's address for another program."""
        port = self._port or (443 if self._is_secure else 80)
        return Endpoint(self._host, port, self._is_secure, self._prefix, self._key, self._dial)

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Reply:
        """Send a request and read the whole answer, whatever its status.

        `timeout_s` bounds each wait for the server. Raises Unreachable, and what `body` raises.
        """
        idle = self._take_idle()
        try:
            return self._exchange_over(
                idle or self._connected(), method, path, body, headers, timeout_s
            )
        except Unreachable:
            # The server may have closed the kept connection just then.
            if idle is None or method not in ("GET", "HEAD"):
                raise
        return self._exchange_over(self._connected(), method, path, body, headers, timeout_s)

    def _exchange_over(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Reply:
        """Exchange over a connection, which is then kept or closed."""
        is_sent = is_kept = False
        try:
            connection.sock.settimeout(timeout_s)
            # A server may refuse an upload and close the connection before reading all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, body, self._head(headers))
                is_sent = True
            response = connection.getresponse()
            data = response.read(ANSWER_MAX + 1)
            is_read = response.isclosed() and not response.will_close
            is_kept = self._keeps and is_sent and is_read
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            if is_kept:
                self._idle = connection
            else:
                connection.close()
        if len(data) > ANSWER_MAX:
            raise Unreachable(f"{self._url}: expected at most {ANSWER_MAX} bytes, got more")
        return Reply(response.status, response.headers, data)

    @contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[tuple[Reply, Iterator[bytes]]]:
        """GET a stream while the block runs: its head, and its body in pieces.

        `timeout_s` bounds each wait for the server. Raises Unreachable, also while the body is
        read, and ApiError for a refusal.
        """
        connection = self._connected()
        try:
            sock = connection.sock
            try:
                sock.settimeout(timeout_s)
                connection.request("GET", self._prefix + path, None, self._head(headers))
                response = connection.getresponse()
                is_refused = response.status != http.client.OK
                body = response.read(REFUSAL_MAX) if is_refused else b""
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            with response:
                reply = check(Reply(response.status, response.headers, body))
                yield reply, self._pieces(response)
        finally:
            connection.close()

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        body: bytes | BinaryIO | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Iterator[tuple[Reply, Iterator[bytes]]]:
        """Send a request and stream its answer while the block runs: its head, whatever its status,
        and its body in pieces.

        A `body` that is a file needs the header Content-Length. `timeout_s` bounds each wait for
        the server. Raises Unreachable, also while the body is read.
        """
        connection = self._connected()
        try:
            try:
                connection.sock.settimeout(timeout_s)
                # A server may answer, and close the connection, before it has read all of it.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, self._prefix + path, body, self._head(headers))
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            with response:
                yield Reply(response.status, response.headers, b""), self._whole(response)
        finally:
            connection.close()

    def download(self, path: str, write: Callable[[bytes], object], timeout_s: float) -> None:
        """GET an answer with a Content-Length and pass its pieces to `write`.

        Raises what `open` and `write` raise, and Unreachable if the length differs.
        """
        with self.open(path, {}, timeout_s) as (reply, pieces):
            left = int(reply.headers.get("Content-Length") or 0)
            for piece in pieces:
                left -= len(piece)
                write(piece)
        if left:
            raise Unreachable(f"{self._url}: {path} was cut off, {left} bytes are missing")

    def _whole(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the body as `_pieces`. Raises Unreachable if it is shorter than announced."""
        left = response.length or 0
        try:
            for piece in self._pieces(response):
                left -= len(piece)
                yield piece
            if left > 0:
                raise Unreachable(f"{self._url}: the answer was cut off, {left} bytes are missing")
        except Unreachable as error:
            error.add_note(CUT_HINT)
            raise

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the body in pieces of at least one byte, as they arrive."""
        try:
            while piece := response.read1(PIECE):
                yield piece
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"{self._url}: the answer was cut off: {why}") from error

    def _head(self, headers: Mapping[str, str]) -> dict[str, str]:
        own = {} if self._keeps else {"Connection": "close"}
        if self._key:
            own["Authorization"] = f"Bearer {self._key}"
        return {**own, **headers}

    def _take_idle(self) -> http.client.HTTPConnection | None:
        """Return the kept connection, unless its server has closed it; it is the caller's."""
        idle, self._idle = self._idle, None
        if idle is not None and select.select([idle.sock], [], [], 0)[0]:
            idle.close()
            return None
        return idle

    def _connected(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        if self._dial is not None:
            connection.sock = self._dial(connection.host, connection.port)
            return connection
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from error
        if self._verify is not None:
            try:
                self._verify(connection.sock)
            except BaseException:
                connection.close()
                raise
        return connection

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._url} does not answer: {str(error) or type(error).__name__}")


def check(reply: Reply) -> Reply:
    """Return `reply` if it is a success. Raises ApiError."""
    if http.client.OK <= reply.status < http.client.MULTIPLE_CHOICES:
        return reply
    problem = json_object(reply.body)
    if problem is None:
        shown = reply.body[:SHOWN_MAX].decode(errors="replace").strip()
        reason = http.client.responses.get(reply.status, "")
        problem = {"title": f"HTTP {reply.status} {reason}".strip(), "detail": shown}
    retry = reply.headers.get("Retry-After", "")
    if retry.isdecimal() and "retry_after_s" not in problem:
        problem["retry_after_s"] = int(retry)
    raise ApiError(reply.status, problem)


def json_object(body: bytes) -> dict[str, object] | None:
    """Return the JSON object in `body`, or None."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _explain(status: int, problem: PartialProblem) -> str:
    title, detail = problem.title or f"HTTP {status}", problem.detail or ""
    lines = [f"{title}: {detail}" if detail else title]
    for name, value in (("expected", problem.expected), ("got", problem.got)):
        if value and value not in detail:
            lines.append(f"  {name}: {value}")
    return "\n".join(lines)


def pieces(source: BinaryIO, size: int, progress: Progress) -> Iterator[bytes]:
    """Yield `size` bytes of `source` in pieces. Raises BadBundle if it has fewer."""
    left = size
    while left:
        try:
            chunk = source.read(min(CHUNK, left))
        except OSError as error:
            raise BadBundle(f"the file cannot be read: {error}") from error
        if not chunk:
            raise BadBundle(f"the file shrank during the upload: {left} of {size} bytes missing")
        left -= len(chunk)
        yield chunk
        progress(len(chunk))
