"""Tests of parsing plain request heads."""

from __future__ import annotations

import pytest

from gateway.http.plain_heads import HEAD_MAX, HEADERS_MAX, parse_plain_head

PLAIN = (
    b"POST /fn/digits@3 HTTP/1.1\r\nHost: localhost:8080\r\nauthorization: Bearer k\r\n"
    b"Content-Type:application/json\r\nConnection: Keep-Alive\r\nContent-Length: 12\r\n\r\n"
)


def without(old: bytes, new: bytes) -> bytes:
    """Return the plain head with `old` replaced by `new`."""
    assert old in PLAIN
    return PLAIN.replace(old, new)


def test_a_plain_head_is_read() -> None:
    """Header names match in any case, with one space after the colon or none."""
    hot = parse_plain_head(PLAIN)
    assert hot is not None
    assert hot.length == 12
    assert (hot.head.ref, hot.head.host) == ("digits@3", "localhost:8080")
    assert (hot.head.credential.bearer, hot.head.content_type) == ("k", "application/json")
    assert (hot.head.accept, hot.head.origin) == (None, None)


@pytest.mark.parametrize(
    ("path", "ref", "version"),
    [
        (b"/fn/digits", "digits", None),
        (b"/v2/models/My_Net.v2-b/infer", "My_Net.v2-b", ""),
        (b"/v2/models/digits/versions/17/infer", "digits", "17"),
    ],
)
def test_an_inference_of_the_protocol_is_plain(path: bytes, ref: str, version: str | None) -> None:
    """The path alone says which protocol a head belongs to, and which model it names."""
    hot = parse_plain_head(without(b"/fn/digits@3", path))
    assert hot is not None
    assert (hot.head.ref, hot.head.version) == (ref, version)


@pytest.mark.parametrize(
    ("path", "coding", "is_plain"),
    [
        (b"/fn/digits", b"gzip", True),
        (b"/v2/models/digits/infer", b"gzip, deflate", True),
        (b"/v2/models/digits/infer", b"gzip", False),
    ],
)
def test_a_head_that_asks_for_compression_is_not_plain(
    path: bytes, coding: bytes, is_plain: bool
) -> None:
    """Only the protocol's answers are compressed, and only for a client that names one coding."""
    raw = without(b"/fn/digits@3", path).replace(
        b"Connection", b"Accept-Encoding: " + coding + b"\r\nConnection"
    )
    assert (parse_plain_head(raw) is not None) == is_plain


@pytest.mark.parametrize(
    "raw",
    [
        without(b"POST", b"GET"),
        *(
            without(b"/fn/digits@3", path)
            for path in (
                b"/v2/models/digits",
                b"/v2/models/digits/infer/",
                b"/v2/models//infer",
                b"/v2/models/a/b/infer",
                b"/v2/models/dig%69ts/infer",
                b"/v2/models/digits/versions//infer",
                b"/v2/models/digits/versions/x/infer",
                b"/v2/models/digits/versions/" + b"1" * 19 + b"/infer",
                b"/v2/models/" + b"a" * 256 + b"/infer",
                b"/V2/models/digits/infer",
            )
        ),
        without(b"POST", b"post"),
        without(b"HTTP/1.1", b"HTTP/1.0"),
        without(b"digits@3", b"digits?x=1"),
        without(b"digits@3", b"dig%69ts"),
        without(b"digits@3", b"digits/"),
        without(b"/fn/", b"//fn/"),
        without(b"POST /fn", b"POST http://a/fn"),
        without(b"POST /fn", b"POST  /fn"),
        without(b"Host: localhost:8080\r\n", b""),
        without(b"Host: localhost:8080", b"Host: a\r\nHost: a"),
        without(b"Host: localhost:8080", b"Host : a"),
        without(b"Host: localhost:8080", b"Host:\ta"),
        without(b"Host: localhost:8080", b"Host:  a"),
        without(b"Host: localhost:8080", b"Host: a "),
        without(b"Host: localhost:8080", b"Host: a\r\n b"),
        without(b"Host: localhost:8080\r\n", b"Host: a\n"),
        without(b"Host: localhost:8080", b"Host: \xe4"),
        without(b"Host: localhost:8080", b"Host: a\0"),
        without(b"Host: localhost:8080", b"Host:"),
        without(b"Content-Length: 12\r\n", b""),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nContent-Length: 12"),
        without(b"Content-Length: 12", b"Content-Length: +12"),
        without(b"Content-Length: 12", b"Content-Length: 012"),
        without(b"Content-Length: 12", b"Content-Length: 1,2"),
        without(b"Content-Length: 12", b"Content-Length: 1234567890"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nTransfer-Encoding: chunked"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nExpect: 100-continue"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nUpgrade: websocket"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nContent-Encoding: gzip"),
        without(b"Connection: Keep-Alive", b"Connection: upgrade\r\nUpgrade: websocket"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nProxy-Connection: close"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nSec-WebSocket-Key1: 4 @1"),
        without(b"Content-Length: 12", b"Content-Length: 12\r\nX_y: 1"),
        without(b"Keep-Alive", b"close"),
        without(b"Keep-Alive", b"keep-alive, upgrade"),
        without(b"authorization: Bearer k", b"X: " + b"a" * HEAD_MAX),
        without(
            b"authorization: Bearer k",
            b"\r\n".join(b"X%d: 1" % number for number in range(HEADERS_MAX)),
        ),
    ],
)
def test_other_heads_are_left_to_aiohttp(raw: bytes) -> None:
    """Heads that two parsers could read differently, and unusual ones, are not plain."""
    assert parse_plain_head(raw) is None
