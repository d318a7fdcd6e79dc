"""Heads of answers of a function's server."""

from __future__ import annotations

import pytest

from gateway.proxy.framing import CHUNKED, NO_BODY, UNTIL_CLOSE, BodyKind, Framing
from gateway.proxy.response_head import (
    FIELDS_MAX,
    HEAD_MAX,
    ResponseHead,
    UpstreamError,
    parse_response_head,
)


def parse(*lines: bytes, line: bytes = b"HTTP/1.1 200 OK", method: bytes = b"GET") -> ResponseHead:
    """Parse a head with these lines."""
    return parse_response_head(b"\r\n".join((line, *lines, b"", b"")), method)


def test_a_plain_head() -> None:
    """Status, reason and fields are as sent."""
    head = parse(b"Content-Length: 5", b"X-A: b")

    assert (head.minor, head.status, head.reason) == (1, 200, b"OK")
    assert head.fields.lines == ((b"Content-Length", b"5"), (b"X-A", b"b"))
    assert head.framing == Framing(BodyKind.LENGTH, 5)
    assert (head.keep_alive, head.is_interim) == (True, False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"HTTP/1.1 299", b""),
        (b"HTTP/1.1 299 ", b""),
        (b"HTTP/1.1 299 a  b", b"a  b"),
        (b"HTTP/1.1 299 caf\xe9\t!", b"caf\xe9\t!"),
        (b"HTTP/1.0 299 x", b"x"),
    ],
)
def test_reasons(line: bytes, reason: bytes) -> None:
    """The reason may be missing, and may be any text."""
    head = parse(line=line)

    assert (head.status, head.reason, head.minor) == (299, reason, int(b"1.1" in line))


@pytest.mark.parametrize("status", [100, 199, 299, 420, 599])
def test_statuses(status: int) -> None:
    """Statuses that no RFC names are passed on: a client takes them for x00 (RFC 9110, 15)."""
    assert parse(line=b"HTTP/1.1 %d X" % status).status == status


@pytest.mark.parametrize("status", [600, 903, 999])
def test_statuses_of_no_class_are_refused(status: int) -> None:
    """A client cannot know what they mean."""
    with pytest.raises(UpstreamError, match=f"expected a status from 100 to 599, got {status}"):
        parse(line=b"HTTP/1.1 %d X" % status)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"HTTP/1.1",
        b"HTTP/1.1 ",
        b"HTTP/1.1 99 Low",
        b"HTTP/1.1 099 Low",
        b"HTTP/1.1 1000 High",
        b"HTTP/1.1 2x0 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.2 200 OK",
        b"HTTP/2.0 200 OK",
        b"HTTP/0.9 200 OK",
        b"http/1.1 200 OK",
        b"ICY 200 OK",
        b"\r\nHTTP/1.1 200 OK",
        b" HTTP/1.1 200 OK",
        b"HTTP/1.1 200\tOK",
        b"HTTP/1.1 200 O\0K",
        b"HTTP/1.1 200 O\x7fK",
        b"HTTP/1.1 200 O\nK",
        b"HTTP/1.1 200 O\rK",
        b"HTTP/1.1 200 OK\r",
    ],
)
def test_malformed_status_lines_are_refused(line: bytes) -> None:
    """A status line has an exact form."""
    with pytest.raises(UpstreamError, match="status line"):
        parse(line=line)


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Content-Length: five",
        b"Transfer-Encoding: gzip, chunked",
        b"A: b\r\n c",
        b"A : b",
        b"A: \0",
        b"A: b\n",
        b"Connection: transfer-encoding",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_malformed_fields_are_refused(line: bytes, method: bytes) -> None:
    """The strict rules of fields hold for answers, whether a body follows or not."""
    with pytest.raises(UpstreamError):
        parse(line, method=method)


def test_chunks_of_http_1_0_are_refused() -> None:
    """HTTP/1.0 has no Transfer-Encoding."""
    with pytest.raises(UpstreamError, match="Transfer-Encoding"):
        parse(b"Transfer-Encoding: chunked", line=b"HTTP/1.0 200 OK")


@pytest.mark.parametrize(
    ("status", "is_interim"), [(100, 1), (101, 0), (102, 1), (199, 1), (200, 0)]
)
def test_interim_answers(status: int, is_interim: int) -> None:
    """Another head follows after each 1xx but 101; none of them has a body."""
    head = parse(b"Content-Length: 5", line=b"HTTP/1.1 %d X" % status)

    assert head.is_interim is bool(is_interim)
    assert (head.framing == NO_BODY) is (status < 200)


@pytest.mark.parametrize(
    ("method", "status", "has_body"),
    [
        (b"GET", 200, True),
        (b"GET", 205, True),
        (b"GET", 303, True),
        (b"GET", 305, True),
        (b"GET", 204, False),
        (b"GET", 304, False),
        (b"HEAD", 200, False),
        (b"HEAD", 404, False),
    ],
)
def test_answers_without_a_body(method: bytes, status: int, has_body: bool) -> None:
    """Answers to HEAD, 204 and 304 have no body, whatever their fields say."""
    for line, framing in (
        (b"Content-Length: 5", Framing(BodyKind.LENGTH, 5)),
        (b"Transfer-Encoding: chunked", CHUNKED),
        (b"X: y", UNTIL_CLOSE),
    ):
        head = parse(line, line=b"HTTP/1.1 %d X" % status, method=method)
        assert head.framing == (framing if has_body else NO_BODY)


def test_a_body_until_the_end_of_the_connection() -> None:
    """Without a length the connection ends with the body, even if it says keep-alive."""
    for line in (b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK"):
        head = parse(b"Connection: keep-alive", line=line)
        assert (head.framing, head.keep_alive) == (UNTIL_CLOSE, False)


@pytest.mark.parametrize(
    ("line", "connection", "expected"),
    [
        (b"HTTP/1.1 200 OK", b"close", False),
        (b"HTTP/1.1 200 OK", b"x", True),
        (b"HTTP/1.0 200 OK", b"x", False),
        (b"HTTP/1.0 200 OK", b"keep-alive", True),
    ],
)
def test_persistence(line: bytes, connection: bytes, expected: bool) -> None:
    """The field Connection and the version decide."""
    head = parse(b"Content-Length: 0", b"Connection: " + connection, line=line)

    assert head.keep_alive is expected
    assert head.options == {connection}


@pytest.mark.parametrize(
    ("status", "method", "line", "expected"),
    [
        (204, b"GET", b"X: y", True),
        (204, b"GET", b"Content-Length: 0", True),
        (204, b"GET", b"Content-Length: 5", False),
        (204, b"GET", b"Transfer-Encoding: chunked", False),
        (304, b"GET", b"Content-Length: 5", True),
        (304, b"GET", b"Transfer-Encoding: chunked", False),
        (200, b"HEAD", b"Content-Length: 5", True),
        (200, b"HEAD", b"Transfer-Encoding: chunked", False),
        (200, b"HEAD", b"X: y", True),
    ],
)
def test_a_connection_that_may_carry_a_forbidden_body_is_not_kept(
    status: int, method: bytes, line: bytes, expected: bool
) -> None:
    """Some servers send a body where there must be none: it would be the next answer."""
    head = parse(line, line=b"HTTP/1.1 %d X" % status, method=method)

    assert head.keep_alive is expected


def test_the_size_of_a_head_is_limited() -> None:
    """A head of exactly the limit is accepted."""
    raw = b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n"
    fill = b"x" * (64 * 1024 - len(raw) + 2)

    assert parse_response_head(raw % fill, b"GET").fields.get(b"x") == fill
    with pytest.raises(UpstreamError, match=str(HEAD_MAX)):
        parse_response_head(raw % (fill + b"x"), b"GET")


def test_the_number_of_fields_is_limited() -> None:
    """As many fields as the limit are accepted."""
    assert len(parse(*[b"A: b"] * FIELDS_MAX).fields.lines) == FIELDS_MAX == 200
    with pytest.raises(UpstreamError, match=str(FIELDS_MAX)):
        parse(*[b"A: b"] * (FIELDS_MAX + 1))
