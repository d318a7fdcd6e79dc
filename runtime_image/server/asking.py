"""Requests of the sidecar's own to its server: each over a connection of its own, in a thread."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from runtime_image.contract.errors import LoadError
from runtime_image.contract.samples import REASON_MAX, Answer, SampleRequest
from runtime_image.server.connecting import Server, shut
from runtime_image.server.golden.answers import BODY_MAX, read_answer

BODY_SENT_MAX: Final = 64 * 2**20
"""Max bytes of a sample's body."""
ANSWER_MAX: Final = 64 * 2**20
"""Max bytes of an answer; a longer one is not read to its end, and counts as none."""


class SampleError(LoadError):
    """A sample was not answered as expected."""

    stage = "sample"


class Asked(NamedTuple):
    """An answer, and the milliseconds from the connection to its end."""

    answer: Answer
    ms: float


def ask(request: SampleRequest, server: Server, folder: Path, limit_s: float) -> Asked:
    """Send a request, and read its whole answer, of which the first bytes count. Blocks.

    `folder` has the files of the bundle. Raises SampleError if there is no whole answer within
    `limit_s`.
    """
    name, body = f"{request.method} {request.path}", body_of(request, folder)
    began = time.monotonic()
    with connection(server, limit_s, name) as sock:
        client = http.client.HTTPConnection(server.name)
        client.sock = sock
        try:
            client.request(
                request.method, request.path, body, {"Host": server.name, **request.headers}
            )
            answer = client.getresponse()
            content = answer.read(BODY_MAX)
            length = len(content)
            while part := answer.read(BODY_MAX):
                length += len(part)
                if length > ANSWER_MAX:
                    raise ValueError(f"more than {ANSWER_MAX} bytes")
            missing = f"the end, {answer.length} bytes early" if answer.length else ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            missing = repr(error)[:REASON_MAX]  # it may have a line of the server's
    took_s = time.monotonic() - began
    if took_s >= limit_s:  # a body without a length ends when the connection is shut
        missing = f"no whole answer within {limit_s:.3g} s"
    if missing:
        raise SampleError(f"{name}: expected an answer, got {missing}")
    kind = answer.headers.get("Content-Type", "")
    return Asked(read_answer(answer.status, kind, content), took_s * 1e3)


def body_of(request: SampleRequest, folder: Path) -> bytes:
    """Return the body of a sample. Raises SampleError if its file is not in the folder."""
    if not request.body.startswith("@"):
        return request.body.encode()
    path = (folder / request.body[1:]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise SampleError(f"{request.path}: expected a file of the bundle as body, got {path.name}")
    with path.open("rb") as file:
        return file.read(BODY_SENT_MAX)


@contextlib.contextmanager
def connection(server: Server, max_s: float, name: str) -> Iterator[socket.socket]:
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
