"""Requests to server functions from options, and those of `fnctl invoke`, whose answers are printed
as they arrive."""

from __future__ import annotations

import codecs
import json
import mimetypes
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import typer

from admin.cli.errors import INTERRUPTED, REFUSED
from admin.cli.options import Session
from admin.client import routes
from admin.client.client import Answer, ApiError, Client, HttpRequest
from admin.client.transport import Reply
from admin.text import duration, plain, size
from runtime_image.contract.samples import SampleRequest

SHOWN_MAX: Final = 16 * 1024 * 1024
"""Max bytes of an answer that --json prints."""
MISTAKES: Final = 400
FAILURES: Final = 500
TYPE: Final = "Content-Type"
JSON_TYPE: Final = "application/json"
OCTETS: Final = "application/octet-stream"
TEXTS: Final = ("text/", "application/json", "application/x-ndjson", "application/xml")
METHOD: Final = re.compile(r"[A-Za-z]{1,32}")
FIELD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Name of a header field (RFC 9110)."""
FRAMING: Final = ("connection", "content-length", "transfer-encoding")

Write = Callable[[bytes], object]
Show = Callable[[Answer], object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of a request. None or "" stand for those that were not given."""

    path: str | None = None
    method: str | None = None
    headers: tuple[str, ...] = ()
    body: str | None = None
    media: str = ""
    accept: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether no option says what to send, so that the function's sample is sent."""
        return self.path is None and self.method is None and self.body is None

    @property
    def option(self) -> str:
        """The first option that was given of those only for servers and of -d, "" if none was."""
        given = {"--path": self.path, "-X": self.method, "-H": self.headers, "-d": self.body}
        return next((name for name, value in given.items() if value not in (None, ())), "")


class Patience(NamedTuple):
    """Max seconds that a call waits before it starts, None for the function's own, and max seconds
    until the answer."""

    wait_s: float | None
    timeout_s: float


def send(
    session: Session,
    name: str,
    wanted: Wanted,
    output: Path | None,
    *,
    wait_s: float | None,
    timeout_s: float,
) -> None:
    """Send a request and print the answer's body as it arrives, or write it to `output`. A remark
    with status, time and size follows.

    Raises ApiError for a refusal, Unreachable also for an answer that was cut off, and typer.Exit
    for a status from 400 on.
    """

    def sample(headers: Mapping[str, str]) -> HttpRequest:
        return _sample(session, name, headers)

    with opened(wanted, sample) as request:
        exchange(session, name, request, output, Patience(wait_s, timeout_s))


def exchange(
    session: Session,
    name: str,
    request: HttpRequest,
    output: Path | None,
    patience: Patience,
    show: Show | None = None,
) -> None:
    """As `send`, of a request that is made. `show` prints an answer in JSON, where it is not
    written to a file."""
    began_s = time.monotonic()
    try:
        opened = session.client.exchange(name, request, **patience._asdict())
        with opened as (reply, pieces):
            first_ms = (time.monotonic() - began_s) * 1e3
            kind = reply.headers.get(TYPE, "")
            if show is not None and output is None and kind.startswith(JSON_TYPE):
                show(Answer(_whole(pieces), kind, reply.headers.get("Server-Timing", "")))
                return
            count = _deliver(session, reply, pieces, output)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    took = f"{duration((time.monotonic() - began_s) * 1e3)}, head after {duration(first_ms)}"
    where = f" to {output}" if output else ""
    session.remark(f"HTTP {reply.status}, {size(count)}{where} in {took}")
    if reply.status >= FAILURES:
        session.next(f"fnctl logs {name.partition('@')[0]}")
    if reply.status >= MISTAKES:
        raise typer.Exit(REFUSED)


def _whole(pieces: Iterator[bytes]) -> bytes:
    """Return a body. Raises typer.BadParameter if it is too large to be shown."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > SHOWN_MAX:
            raise typer.BadParameter(
                f"expected --output FILE for an answer of more than {size(SHOWN_MAX)}"
            )
    return bytes(body)


@contextmanager
def opened(
    wanted: Wanted, sample: Callable[[Mapping[str, str]], HttpRequest]
) -> Iterator[HttpRequest]:
    """Yield the request that the options ask for; a file of its body is open while the block runs.

    `sample` returns the request for options that say nothing but headers, which it gets. Raises
    typer.BadParameter.
    """
    headers = _headers(wanted)
    if wanted.is_empty:
        yield sample(headers)
        return
    path = wanted.path or "/"
    if not path.startswith("/"):
        raise typer.BadParameter(f"expected /PATH, got {path!r}", param_hint="--path")
    method = (wanted.method or ("GET" if wanted.body is None else "POST")).upper()
    if METHOD.fullmatch(method) is None:
        raise typer.BadParameter(f"expected a method such as GET, got {method!r}", param_hint="-X")
    if wanted.body is None or not wanted.body.startswith("@"):
        body = None if wanted.body is None else wanted.body.encode()
        if body is not None:
            headers.setdefault(TYPE, wanted.media or _type_of_text(body))
        yield HttpRequest(path, method, headers, body)
        return
    file = Path(wanted.body[1:]).expanduser()
    with _file(file) as source:
        headers.setdefault(TYPE, wanted.media or mimetypes.guess_type(file.name)[0] or OCTETS)
        headers["Content-Length"] = str(os.fstat(source.fileno()).st_size)
        yield HttpRequest(path, method, headers, source)


def of_sample(
    client: Client, ref: str, sample: SampleRequest, headers: Mapping[str, str]
) -> HttpRequest:
    """Return the request of a server's `sample` with further `headers`. Raises ApiError or
    Unreachable."""
    body, own = client.sample(ref) if sample.body else None, sample.headers
    if body is not None and TYPE.lower() not in map(str.lower, own):
        own = {**own, TYPE: body.content_type}
    given = {name.lower() for name in headers}
    own = {name: value for name, value in own.items() if name.lower() not in given}
    content = body.body if body else None
    return HttpRequest(sample.path, sample.method, {**own, **headers}, content)


def _sample(session: Session, name: str, headers: Mapping[str, str]) -> HttpRequest:
    """Return the first sample of the function; "/" if there is none, or the key may not read it."""
    client, what = session.client, "this"
    try:
        server = client.call(routes.FUNCTION, name.partition("@")[0]).value.server
        samples = server.samples if server else []
        request = of_sample(client, name, samples[0] if samples else SampleRequest(), headers)
        what = "the sample" if samples else "this"
    except ApiError:
        request = of_sample(client, name, SampleRequest(), headers)
    session.remark(f"no path given, {what} is sent: {request.method} {request.path}")
    return request


def _headers(wanted: Wanted) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in wanted.headers:
        name, colon, value = item.partition(":")
        name = name.strip()
        if not FIELD.fullmatch(name) or not colon or not _is_sendable(value):
            raise typer.BadParameter(f"expected 'NAME: VALUE', got {item!r}", param_hint="-H")
        if name.lower() in FRAMING:
            raise typer.BadParameter(
                f"expected a header that the body does not decide, got {item!r}", param_hint="-H"
            )
        found[TYPE if name.lower() == TYPE.lower() else name] = value.strip()
    if wanted.accept:
        found.setdefault("Accept", wanted.accept)
    return found


def _is_sendable(value: str) -> bool:
    """Return whether a header's value is printable, in the characters of HTTP/1.1."""
    return value.isprintable() and all(ord(one) < 256 for one in value)


def _type_of_text(body: bytes) -> str:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return "text/plain; charset=utf-8"
    return "application/json"


def _file(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise typer.BadParameter(f"{path}: expected a regular file", param_hint="-d")
        return path.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="-d") from error


def _deliver(session: Session, reply: Reply, pieces: Iterator[bytes], output: Path | None) -> int:
    """Pass on the body piece by piece; return its bytes."""
    kind = reply.headers.get(TYPE, "")
    if session.as_json and output is None:
        return _as_json(session, reply, kind, pieces)
    with _target(output, kind) as write:
        count = 0
        for piece in pieces:
            count += len(piece)
            write(piece)
    if session.as_json:
        session.answer(_head(reply, kind, count), lambda: "")
    return count


@contextmanager
def _target(output: Path | None, kind: str) -> Iterator[Write]:
    """Yield the function that writes a piece at once: to a file, or to stdout. A terminal gets
    text without control characters; other content is left out, as `curl` does."""
    if output is not None:
        try:
            file = output.open("wb")
        except OSError as error:
            raise typer.BadParameter(
                f"{output}: {error.strerror}", param_hint="--output"
            ) from error
        with file:
            yield file.write
        return
    if not sys.stdout.isatty():
        yield _flushed
        return
    is_text = not kind or kind.lower().startswith(TEXTS) or "+json" in kind or "+xml" in kind
    if not is_text:
        typer.echo(f"{kind}: save it with --output FILE", err=True)
        yield len
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(piece: bytes) -> None:
        sys.stdout.write(plain(decoder.decode(piece).replace("\r\n", "\n")))
        sys.stdout.flush()

    try:
        yield show
    finally:  # an error begins a line of its own
        sys.stdout.write("\n")


def _flushed(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _as_json(session: Session, reply: Reply, kind: str, pieces: Iterator[bytes]) -> int:
    body = bytearray()
    count = 0
    for piece in pieces:
        count += len(piece)
        body += piece[: SHOWN_MAX - len(body)]
    try:
        text = body.decode() if count == len(body) else None
    except UnicodeDecodeError:
        text = None
    session.answer({**_head(reply, kind, count), "body": text}, lambda: "")
    return count


def _head(reply: Reply, kind: str, count: int) -> dict[str, Any]:
    return {
        "status": reply.status,
        "content_type": kind,
        "bytes": count,
        "headers": [[name, value] for name, value in reply.headers.items()],
    }
