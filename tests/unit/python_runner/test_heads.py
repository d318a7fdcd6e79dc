"""Heads and bodies of requests, as hostile peers send them."""

from __future__ import annotations

import pytest

from python_runner.heads import (
    FIELDS_MAX,
    LINE_MAX,
    TRAILER_MAX,
    BadHttp,
    Body,
    foreign,
    read_head,
)
from runtime_image.contract import problems
from runtime_image.contract.problems import Problem

BAD = problems.BAD_REQUEST


def head(*lines: str, first: str = "POST / HTTP/1.1", host: str = "Host: a") -> bytes:
    """Return a head without the line ends behind it."""
    return "\r\n".join([first, *([host] if host else []), *lines]).encode("latin-1")


@pytest.mark.parametrize(
    ("data", "problem", "text"),
    [
        (b"", BAD, "a request line"),
        (b"POST / HTTP/2.0\r\nHost: a", BAD, "a request line"),
        (b"POST / HTTP/1.1 \r\nHost: a", BAD, "a request line"),
        (b"POST  / HTTP/1.1\r\nHost: a", BAD, "a request line"),
        (b"POST http://a/ HTTP/1.1\r\nHost: a", BAD, "a request line"),
        (b"POST * HTTP/1.1\r\nHost: a", BAD, "a request line"),
        (b"P@ST / HTTP/1.1\r\nHost: a", BAD, "a request line"),
        (b"POST /\x00 HTTP/1.1\r\nHost: a", BAD, "a request line"),
        (b"POST / HTTP/1.1\nHost: a", BAD, "a request line"),
        (b"\r\nPOST / HTTP/1.1\r\nHost: a", BAD, "a request line"),
        (head(host=""), BAD, "a field Host"),
        (head("Host: b"), BAD, "the field host once"),
        (head(" folded: 1"), BAD, "fields `Name: value`"),
        (head("Content-Length : 1"), BAD, "fields `Name: value`"),
        (head("no colon"), BAD, "fields `Name: value`"),
        (head("X: a\x00b"), BAD, "fields `Name: value`"),
        (head("X: a\rb"), BAD, "fields `Name: value`"),
        (head("X: a\nContent-Length: 3"), BAD, "fields `Name: value`"),
        (head(": a"), BAD, "fields `Name: value`"),
        (head("Content-Length: 1", "Content-Length: 1"), BAD, "content-length once"),
        (head("Content-Length: 1, 1"), BAD, "Content-Length in digits"),
        (head("Content-Length: +1"), BAD, "Content-Length in digits"),
        (head("Content-Length: -1"), BAD, "Content-Length in digits"),
        (head("Content-Length: 0x1"), BAD, "Content-Length in digits"),
        (head("Content-Length: \xb2"), BAD, "Content-Length in digits"),
        (head("Content-Length: 1_0"), BAD, "Content-Length in digits"),
        (head(f"Content-Length: {'9' * 19}"), BAD, "Content-Length in digits"),
        (head("Content-Length:"), BAD, "Content-Length in digits"),
        (head("Content-Length: 1", "Transfer-Encoding: chunked"), BAD, "Content-Length, or"),
        (head("Transfer-Encoding: gzip, chunked"), BAD, "Transfer-Encoding: chunked"),
        (head("Transfer-Encoding: chunked, chunked"), BAD, "Transfer-Encoding: chunked"),
        (head("Transfer-Encoding: xchunked"), BAD, "Transfer-Encoding: chunked"),
        (head("Transfer-Encoding: chunked", "Transfer-Encoding: x"), BAD, "once"),
        (head("Transfer-Encoding: chunked", first="POST / HTTP/1.0"), BAD, "Content-Length, or"),
        (head("Content-Type: a/b", "Content-Type: c/d"), BAD, "content-type once"),
        (head("Expect: 200-ok"), problems.EXPECTATION_FAILED, "expected 100-continue"),
        (head("Content-Encoding: gzip"), problems.UNSUPPORTED_ENCODING, "expected none"),
        (head(*["A: 1"] * FIELDS_MAX), problems.HEAD_TOO_LARGE, "got more"),
    ],
)
def test_a_hostile_head_is_refused(data: bytes, problem: Problem, text: str) -> None:
    """What two readers could take for different requests, and what has no bound, is no request."""
    with pytest.raises(BadHttp) as refused:
        read_head(data)

    assert refused.value.problem == problem
    assert text in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_head_is_read() -> None:
    """Method, path without its query, fields in lower case, length."""
    found = read_head(head("X-A: 1 ", "x-a:2", "Content-Length: 12", first="POST /a?b HTTP/1.1"))

    assert (found.method, found.path, found.length) == ("POST", "/a", 12)
    assert found.fields["x-a"] == "1, 2"
    assert found.keeps
    assert not found.continues


@pytest.mark.parametrize(
    ("first", "line", "keeps"),
    [
        ("GET / HTTP/1.1", "Connection: Close", False),
        ("GET / HTTP/1.1", "Connection: keep-alive", True),
        ("GET / HTTP/1.0", "A: b", False),
        ("GET / HTTP/1.0", "Connection: Keep-Alive", True),
    ],
)
def test_connections_are_kept_as_asked(first: str, line: str, keeps: bool) -> None:
    """HTTP/1.1 keeps connections unless told otherwise, HTTP/1.0 the other way round."""
    assert read_head(head(line, first=first)).keeps == keeps


def test_a_head_is_read_alike_however_often_it_comes() -> None:
    """Its lines are remembered if it is short; what one caller does to the fields is no other's."""
    for size in (10, 3000):
        data = head("Content-Length: 1", f"X-A: {'a' * size}", "B: 1", "b: 2")
        first, again = read_head(data), read_head(data)
        first.fields["b"] = "changed"
        assert again.fields == {"host": "a", "content-length": "1", "x-a": "a" * size, "b": "1, 2"}
        assert read_head(data) == again
        with pytest.raises(BadHttp, match="content-length once"):
            read_head(data + b"\r\nContent-Length: 1")


CHUNKS = b"5;name=value\r\nhello\r\n1\r\n!\r\n0\r\nA: b\r\n\r\n"


def read(data: bytes, step: int, limit: int = 100) -> tuple[bytes, bytes]:
    """Return the body in chunks that arrives in pieces, and what is left behind it."""
    body, buffer = Body(None, limit), bytearray()
    for at in range(0, len(data), step):
        buffer += data[at : at + step]
        if body.take(buffer):
            return bytes(body.data), bytes(buffer) + data[at + step :]
    raise AssertionError("the body has no end")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_chunks_are_joined_however_they_arrive(step: int) -> None:
    """Extensions and trailers are dropped, and what follows belongs to the next request."""
    assert read(CHUNKS + b"GET /", step) == (b"hello!", b"GET /")


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\r\n", BAD),
        (b"-1\r\n", BAD),
        (b"0x5\r\nhello\r\n0\r\n\r\n", BAD),
        (b"5 \r\nhello", BAD),
        (b"1\nx\r\n", BAD),
        (b"5\r\nhello!\r\n", BAD),
        (b"5\r\nhello\n\r\n", BAD),
        (b"5;\x00\r\nhello\r\n", BAD),
        (b"5;" + b"a" * (LINE_MAX + 9) + b"\r\nhello\r\n", BAD),
        (b"f" * 16 + b"\r\n", BAD),
        (b"f" * 15 + b"\r\n", problems.BODY_TOO_LARGE),
        (b"65\r\n", problems.BODY_TOO_LARGE),
        (b"32\r\n" + b"x" * 50 + b"\r\n33\r\n", problems.BODY_TOO_LARGE),
        (b"0\r\nno field\r\n\r\n", BAD),
        (b"0\r\n" + b"A: b\r\n" * TRAILER_MAX, problems.HEAD_TOO_LARGE),
        (b"0\r\nA: " + b"b" * TRAILER_MAX, problems.HEAD_TOO_LARGE),
    ],
)
def test_hostile_chunks_are_refused(data: bytes, problem: Problem, step: int) -> None:
    """In one piece or byte by byte."""
    with pytest.raises(BadHttp) as refused:
        read(data, step)

    assert refused.value.problem == problem


def test_a_body_over_the_limit_is_refused_before_it_arrives() -> None:
    """The length alone says it."""
    with pytest.raises(BadHttp) as refused:
        Body(101, 100)

    assert refused.value.problem == problems.BODY_TOO_LARGE


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("Host: 127.0.0.1:8000", ""),
        ("Host: localhost:8000\r\nOrigin: http://127.0.0.1:8000", ""),
        ("Host: 127.0.0.1:8001", "Host: expected 127.0.0.1:8000 or localhost:8000, got '127"),
        ("Host: evil.example:8000", "got 'evil.example:8000'"),
        ("Host: 127.0.0.1:8000\r\nOrigin: http://evil.example", "got 'http://evil.example'"),
        (
            "Host: 127.0.0.1:8000\r\nOrigin: null",
            "Origin: expected a page of http://127.0.0.1:8000",
        ),
        ("Host: 127.0.0.1:8000\r\nOrigin: https://127.0.0.1:8000", "got 'https://127.0.0.1:8000'"),
    ],
)
def test_requests_of_pages_elsewhere_are_known(fields: str, said: str) -> None:
    """By the host that they name, or the page that they come from."""
    head = read_head(f"POST / HTTP/1.1\r\n{fields}".encode())
    found = foreign(head, "127.0.0.1:8000")

    assert said in found
    assert bool(found) == bool(said)
