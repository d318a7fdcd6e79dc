"""Tests of parsing plain request heads, and of their cache."""

from __future__ import annotations

import pytest

from gateway.admission.calls import NOT_CORRELATED, Correlation
from gateway.http.plain_heads import HEAD_MAX, HEADERS_MAX, HEADS_MAX, HeadCache, parse_plain_head

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


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def correlated(*lines: bytes) -> bytes:
    """Return the plain head with these lines in the middle."""
    return without(b"Content-Type", b"".join(line + b"\r\n" for line in lines) + b"Content-Type")


def test_correlation_lines_are_no_part_of_the_cache_key() -> None:
    """Heads that differ only in correlation lines share one entry, wherever these lines are."""
    heads = HeadCache()
    plain = heads.read(PLAIN)
    assert plain is not None
    for number in range(3 * HEADS_MAX):
        id = b"X-REQUEST-ID:id-%d" % number
        hot = heads.read(correlated(b"tracestate: a=1", id, b"TraceParent: " + PARENT))
        assert hot is not None
        assert hot.key is plain.key
        assert hot.head is plain.head
        assert hot.correlation == Correlation(f"id-{number}", PARENT.decode())
    assert heads.read(PLAIN) is plain
    assert plain.correlation is NOT_CORRELATED


def test_unused_correlation_lines_are_dropped() -> None:
    """Invalid correlation and headers that only other systems read are dropped."""
    heads = HeadCache()
    plain = heads.read(PLAIN)
    assert heads.read(correlated(b"baggage: a=b", b"tracestate: c=d")) == plain
    hot = heads.read(correlated(b"traceparent: nonsense", b"X-Request-Id: not sane"))
    assert hot is not None
    assert (hot.key, hot.correlation) == (plain.key if plain else 0, Correlation())


@pytest.mark.parametrize(
    "lines",
    [
        (b"X-Request-Id: a", b"x-request-id: b"),
        (b"traceparent: " + PARENT, b"traceparent: " + PARENT),
        (b"X-Request-Id:",),
        (b"X-Request-Id:  a",),
        (b"X-Request-Id: a ",),
        (b"X-Request-Id:\ta",),
        (b"X-Request-Id: \xe4",),
        (b"X-Request-Id: a\r\n b",),
        (b"X-Request-Id: a\nb: c",),
        (b"X-Request-Id : a",),
        (b"X-Request-Id: a", b"X: \xe4"),
        (b"X-Request-Id: " + b"a" * HEAD_MAX,),
    ],
)
def test_correlation_lines_must_be_plain(lines: tuple[bytes, ...]) -> None:
    """Correlation lines must match the same pattern as all others, and occur once."""
    assert HeadCache().read(correlated(*lines)) is None


def test_removing_correlation_makes_no_head_plain() -> None:
    """A head that is not plain stays so without its correlation lines."""
    assert HeadCache().read(correlated(b"X-Request-Id: a").replace(b"POST", b"GET")) is None
