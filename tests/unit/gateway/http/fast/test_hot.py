"""Tests of which heads are plain."""

from __future__ import annotations

import pytest

from gateway.http.fast.hot import HEAD_MAX, HEADERS_MAX, read_head

PLAIN = (
    b"POST /fn/digits@3 HTTP/1.1\r\nHost: localhost:8080\r\nauthorization: Bearer k\r\n"
    b"Content-Type:application/json\r\nConnection: Keep-Alive\r\nContent-Length: 12\r\n\r\n"
)


def without(old: bytes, new: bytes) -> bytes:
    """The plain head with something else in it."""
    assert old in PLAIN
    return PLAIN.replace(old, new)


def test_a_plain_head_is_read() -> None:
    """Names in any case; one space after the colon or none."""
    hot = read_head(PLAIN)
    assert hot is not None
    assert hot.length == 12
    assert (hot.head.ref, hot.head.host) == ("digits@3", "localhost:8080")
    assert (hot.head.authorization, hot.head.content_type) == ("Bearer k", "application/json")
    assert (hot.head.accept, hot.head.origin) == (None, None)


@pytest.mark.parametrize(
    "raw",
    [
        without(b"POST", b"GET"),
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
def test_whatever_is_not_plain_is_left_to_aiohttp(raw: bytes) -> None:
    """Everything that two readers could understand differently, and all that is unusual."""
    assert read_head(raw) is None
