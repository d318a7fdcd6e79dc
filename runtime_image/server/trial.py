"""Samples of a trial: requests to a server that is ready, and what it answered."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.errors import LoadError
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import BODY_SHOWN_MAX, DESCRIPTION_MAX, ServerSpec
from runtime_image.server.connecting import Server, shut

BODY_S: Final = 5.0
"""Seconds for which the body of an answer is read: a stream may have no end."""
BODY_SENT_MAX: Final = 64 * 2**20
"""Max bytes of a sample's body."""
CONTENT_TYPE_MAX: Final = 100
REASON_BODY_MAX: Final = 300
"""Max characters of an answer in the reason of a failure."""
OTHER_HOST: Final = "fngate.example"
"""A name that no server knows (RFC 6761 section 6.5)."""
GUARDED: Final = frozenset({400, 403, 421})
"""Statuses for a Host that a server does not know: of Django; of Ollama, Jupyter and Vite; of the
SDKs for MCP."""
HOST_S: Final = 5.0
DESCRIPTION_S: Final = 10.0
"""Seconds in which a server describes its calls."""
STATUS_MAX: Final = 400
"""Without a status of its own, a sample expects one below."""


class SampleError(LoadError):
    """A sample was not answered as expected."""

    stage = "sample"


def run_samples(spec: ServerSpec, server: Server, folder: Path) -> list[dict[str, Any]]:
    """Send all samples, one after the other; return what the report shows of each.

    Blocks. Raises SampleError with the answer expected and the one got.
    """
    return [_run(sample, server, folder, spec.max_s) for sample in spec.samples]


def checks_host(spec: ServerSpec, server: Server) -> bool:
    """Return whether a server refuses a Host that it does not know, where it answers its own
    address: a guard against DNS rebinding. Blocks. False where a request fails."""
    path = spec.ready or "/"
    if spec.host:
        return False
    try:
        refused = _status(server, path, OTHER_HOST)
        return refused in GUARDED and _status(server, path, server.name) != refused
    except (SampleError, OSError, ValueError, http.client.HTTPException):
        return False


def _status(server: Server, path: str, host: str) -> int:
    with _connection(server, HOST_S, f"GET {path}") as sock:
        connection = http.client.HTTPConnection(server.name)
        connection.sock = sock
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status


def describe_calls(spec: ServerSpec, server: Server) -> dict[str, str]:
    """Return what a server says of its calls as `description`, a text that nobody has checked, or
    why there is none as `no_description`; {} for a server that has none. Blocks."""
    if not spec.description:
        return {}
    name = f"GET {spec.description}"
    try:
        with _connection(server, DESCRIPTION_S, name) as sock:
            connection = http.client.HTTPConnection(server.name)
            connection.sock = sock
            connection.request("GET", spec.description, headers={"Host": server.name})
            answer = connection.getresponse()
            body = answer.read(DESCRIPTION_MAX + 1)
    except (SampleError, OSError, ValueError, http.client.HTTPException) as error:
        return {"no_description": f"{name}: expected an answer, got {str(error) or error!r}"}
    if answer.status != http.client.OK:
        return {"no_description": f"{name}: expected 200, got {answer.status} {answer.reason}"}
    if len(body) > DESCRIPTION_MAX:
        return {"no_description": f"{name}: expected at most {DESCRIPTION_MAX} bytes, got more"}
    if answer.length:
        return {"no_description": f"{name}: expected {answer.length} more bytes, got the end"}
    return {"description": body.decode("utf-8", "replace")}


def _run(sample: SampleRequest, server: Server, folder: Path, max_s: float) -> dict[str, Any]:
    body = _body(sample, folder)
    name = f"{sample.method} {sample.path}"
    began = time.monotonic()
    with _connection(server, max_s, name) as sock:
        connection = http.client.HTTPConnection(server.name)
        connection.sock = sock
        try:
            headers = {"Host": server.name, **sample.headers}
            connection.request(sample.method, sample.path, body, headers)
            answer = connection.getresponse()
            ms = (time.monotonic() - began) * 1e3
            shown = _beginning(answer, sock)
        except (OSError, ValueError, http.client.HTTPException) as error:
            waited_s = time.monotonic() - began
            what = f"no answer within {max_s:g} s" if waited_s >= max_s else repr(error)
            raise SampleError(f"{name}: expected {_expected(sample)}, got {what}") from error
    text = shown.decode("utf-8", "replace")
    is_right = answer.status == sample.status if sample.status else answer.status < STATUS_MAX
    if not is_right:
        got = f"{answer.status} {answer.reason}: {text[:REASON_BODY_MAX]}"
        raise SampleError(f"{name}: expected {_expected(sample)}, got {got}")
    return {
        "method": sample.method,
        "path": sample.path,
        "status": answer.status,
        "ms": round(ms, 3),
        "content_type": answer.headers.get("Content-Type", "")[:CONTENT_TYPE_MAX],
        "body": text,
    }


def _expected(sample: SampleRequest) -> str:
    return f"status {sample.status}" if sample.status else f"a status below {STATUS_MAX}"


def _body(sample: SampleRequest, folder: Path) -> bytes:
    if not sample.body.startswith("@"):
        return sample.body.encode()
    path = (folder / sample.body[1:]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise SampleError(f"{sample.path}: expected a file of the bundle as body, got {path.name}")
    with path.open("rb") as file:
        return file.read(BODY_SENT_MAX)


@contextlib.contextmanager
def _connection(server: Server, max_s: float, name: str) -> Iterator[socket.socket]:
    """Connect; the connection is shut after `max_s`, however slowly bytes arrive."""
    sock = _connect(server, max_s, name)
    over = threading.Timer(max_s, _shut_down, (sock,))
    over.daemon = True
    over.start()
    try:
        yield sock
    finally:
        over.cancel()
        shut(sock)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _connect(server: Server, max_s: float, name: str) -> socket.socket:
    try:
        sock, error = server.begin()
    except OSError as failed:
        raise SampleError(f"{name}: cannot connect: {failed}") from failed
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    is_connected = not error or bool(poll.poll(max_s * 1e3))
    reason = "" if is_connected else "no connection"
    if not reason and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        reason = "connection refused"
    reason = reason or server.why_not(sock)
    if reason:
        sock.close()
        raise SampleError(f"{name}: cannot connect: {reason}")
    sock.settimeout(max_s)
    return sock


def _beginning(answer: http.client.HTTPResponse, sock: socket.socket) -> bytes:
    """Return the first bytes of the body, as far as they come within BODY_S."""
    until = time.monotonic() + BODY_S
    body = b""
    while len(body) < BODY_SHOWN_MAX and (left_s := until - time.monotonic()) > 0:
        sock.settimeout(left_s)
        try:
            part = answer.read1(BODY_SHOWN_MAX - len(body))
        except TimeoutError:
            break
        if not part:
            break
        body += part
    return body
