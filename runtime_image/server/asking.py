"""Requests of the sidecar's own to its server: each over a connection of its own, in a thread."""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

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


class Answered(NamedTuple):
    """An answer as it came, of whose body the first BODY_MAX bytes are kept."""

    status: int
    content_type: str
    body: bytes
    ms: float
    """Milliseconds from the connection to its end."""


def ask(request: SampleRequest, server: Server, folder: Path, limit_s: float) -> Asked:
    """Send a request as `exchange` does; return what rules compare of its answer."""
    found = exchange(request, server, folder, limit_s)
    return Asked(read_answer(found.status, found.content_type, found.body), found.ms)


def exchange(request: SampleRequest, server: Server, folder: Path, limit_s: float) -> Answered:
    """Send a request, and read its whole answer, of which the first bytes count. Blocks.

    `folder` has the files of the bundle. Raises SampleError if there is no whole answer within
    `limit_s`.
    """
    name, body = f"{request.method} {request.path}", body_of(request, folder)
    began = time.monotonic()
    with connection(server, limit_s, name) as client:
        try:
            headers = {"Host": server.name, **request.headers}
            client.request(request.method, request.path, body, headers)
            answer = client.getresponse()
            content = answer.read(BODY_MAX)
            length = len(content)
            while part := answer.read(BODY_MAX):
                length += len(part)
                if length > ANSWER_MAX:
                    raise ValueError(f"more than {ANSWER_MAX} bytes")
            missing = f"the end, {answer.length} bytes early" if answer.length else ""
        except TimeoutError:
            missing = f"no whole answer within {limit_s:.3g} s"
        except (OSError, ValueError, http.client.HTTPException) as error:
            missing = repr(error)[:REASON_MAX]  # it may have a line of the server's
    if missing:
        raise SampleError(f"{name}: expected an answer, got {missing}")
    took_s, kind = time.monotonic() - began, answer.headers.get("Content-Type", "")
    return Answered(answer.status, kind, content, took_s * 1e3)


def body_of(request: SampleRequest, folder: Path) -> bytes:
    """Return the body of a sample. Raises SampleError if its file is not in the folder."""
    if not request.body.startswith("@"):
        return request.body.encode()
    path = (folder / request.body[1:]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise SampleError(f"{request.path}: expected a file of the bundle as body, got {path.name}")
    with path.open("rb") as file:
        return file.read(BODY_SENT_MAX)


class TimedSocket:
    """What an HTTPConnection uses of a connected socket. All reads and writes end at `until`, in
    monotonic seconds, with TimeoutError: a timeout of the socket's own begins anew with each byte,
    and a socket that was shut down is still read while the server sends."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self.until = until

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        self._wait_less()
        self._sock.sendall(data)

    def recv_into(self, buffer: Any) -> int:
        """Receive some bytes; 0 at the end."""
        self._wait_less()
        return self._sock.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader of the socket."""
        return io.BufferedReader(_Reads(self))

    def close(self) -> None:
        """Do nothing: the connection is shut by who made it."""

    def _wait_less(self) -> None:
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)


class _Reads(io.RawIOBase):
    def __init__(self, sock: TimedSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer)


@contextlib.contextmanager
def connection(server: Server, max_s: float, name: str) -> Iterator[http.client.HTTPConnection]:
    """Connect; what takes longer than `max_s` raises TimeoutError, however bytes arrive. The
    connection is shut in the end."""
    until = time.monotonic() + max_s
    sock = _connect(server, max_s, name)
    client = http.client.HTTPConnection(server.name)
    client.sock = TimedSocket(sock, until)
    try:
        yield client
    finally:
        shut(sock)


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
    return sock
