"""Heads of requests: what is accepted, and what is refused."""

from __future__ import annotations

import pytest

from gateway.proxy.framing import CHUNKED, NO_BODY, BodyKind, Framing
from gateway.proxy.request_head import FIELDS_MAX, HEAD_MAX, RequestHead, parse_request_head
from registry.errors import BadRequest, ExpectationFailed, FnError, HeadTooLarge


def parse(*lines: bytes, line: bytes = b"POST /fn/web/x HTTP/1.1") -> RequestHead:
    """Parse a head with Host and these lines."""
    return parse_request_head(b"\r\n".join((line, b"Host: a", *lines, b"", b"")))


def refusal(raw: bytes, kind: type[FnError] = BadRequest) -> str:
    """Return the text with which a head is refused."""
    with pytest.raises(FnError) as caught:
        parse_request_head(raw)
    assert type(caught.value) is kind
    return str(caught.value)


def test_a_plain_head() -> None:
    """Method, target and fields are as sent; without a length there is no body."""
    head = parse_request_head(b"GET /fn/web/x?q HTTP/1.1\r\nHost: a\r\nX-A:  b c \r\n\r\n")

    assert (head.method, head.target, head.minor) == (b"GET", b"/fn/web/x?q", 1)
    assert head.fields.lines == ((b"Host", b"a"), (b"X-A", b"b c"))
    assert head.framing == NO_BODY
    assert (head.keep_alive, head.expects_continue) == (True, False)
    assert (head.options, head.upgrade) == (frozenset(), ())


def test_a_head_with_connection() -> None:
    """The options of the connection change nothing else."""
    head = parse(b"Connection: keep-alive", b"Content-Length: 7")
    plain = parse(b"Content-Length: 7")

    assert head == plain._replace(fields=head.fields, options=frozenset({b"keep-alive"}))


def test_http_1_0() -> None:
    """An HTTP/1.0 connection persists only by request; it has no Expect and no Upgrade."""
    line = b"POST /x HTTP/1.0"

    assert (parse(line=line).minor, parse(line=line).keep_alive) == (0, False)
    assert parse(b"Connection: keep-alive", line=line).keep_alive is True
    assert parse(b"Expect: 100-continue", b"Content-Length: 1", line=line).expects_continue is False
    assert parse(b"Connection: upgrade", b"Upgrade: websocket", line=line).upgrade == ()


@pytest.mark.parametrize(
    ("line", "framing"),
    [
        (b"X: y", NO_BODY),
        (b"Content-Length: 0", Framing(BodyKind.LENGTH, 0)),
        (b"Content-Length: 7", Framing(BodyKind.LENGTH, 7)),
        (b"Transfer-Encoding: chunked", CHUNKED),
    ],
)
def test_framing(line: bytes, framing: Framing) -> None:
    """The framing is the one that the fields say; `Content-Length: 0` is kept apart from none."""
    assert parse(line).framing == framing


@pytest.mark.parametrize(
    ("line", "expects"),
    [
        (b"Content-Length: 1", True),
        (b"Transfer-Encoding: chunked", True),
        (b"Content-Length: 0", False),
        (b"X: y", False),
    ],
)
def test_only_a_body_is_waited_for(line: bytes, expects: bool) -> None:
    """Expect without a body means nothing (RFC 9110 section 10.1.1)."""
    assert parse(line, b"Expect: 100-Continue").expects_continue is expects
    assert parse(line).expects_continue is False


@pytest.mark.parametrize(
    "value", [b"200-ok", b"", b"100-continue, 100-continue", b"100-continue;a"]
)
def test_other_expectations_fail(value: bytes) -> None:
    """Only 100-continue is known; it stands alone."""
    with pytest.raises(ExpectationFailed, match="100-continue"):
        parse(b"Expect: " + value)


def test_upgrade_needs_connection() -> None:
    """A field Upgrade that Connection does not name is not meant for this hop."""
    assert parse(b"Upgrade: WebSocket, h2c").upgrade == ()
    assert parse(b"Upgrade: websocket", b"Connection: close").upgrade == ()
    head = parse(b"Upgrade: WebSocket, h2c", b"Connection: keep-alive, Upgrade")
    assert head.upgrade == (b"websocket", b"h2c")
    assert head.options == {b"keep-alive", b"upgrade"}
    assert head.keep_alive is True


def test_close() -> None:
    """Connection: close is heard."""
    assert parse(b"Connection: close").keep_alive is False


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"GET /x HTTP/1.2", r"got HTTP/1\.2"),
        (b"GET /x HTTP/2.0", r"got HTTP/2\.0"),
        (b"PRI * HTTP/2.0", r"got HTTP/2\.0"),
        (b"GET /x HTTP/0.9", r"got HTTP/0\.9"),
        (b"GET /x HTTP/1.1 ", "request line"),
        (b"GET /x http/1.1", "request line"),
        (b"GET /x HTTP/11", "request line"),
        (b"GET /x HTTP/1.10", "request line"),
        (b"GET /x", "request line"),
        (b"GET  /x HTTP/1.1", "request line"),
        (b"GET /x  HTTP/1.1", "request line"),
        (b" GET /x HTTP/1.1", "request line"),
        (b"GET\t/x HTTP/1.1", "request line"),
        (b"GET /x y HTTP/1.1", "request line"),
        (b"", "request line"),
        (b"\r\nGET /x HTTP/1.1", "request line"),
        (b"CONNECT /x HTTP/1.1", "got CONNECT"),
        (b"CONNECT a:1 HTTP/1.1", "got CONNECT"),
        (b"TRACE /x HTTP/1.1", "got TRACE"),
        (b"trace /x HTTP/1.1", "got trace"),
        (b"get /x HTTP/1.1", "capitals"),
        (b"G(T /x HTTP/1.1", "token"),
        (b"G\0T /x HTTP/1.1", "token"),
        (b" /x HTTP/1.1", "token"),
        (b"%b /x HTTP/1.1" % (b"M" * 33), "32"),
        (b"GET * HTTP/1.1", "another form"),
        (b"OPTIONS * HTTP/1.1", "another form"),
        (b"GET http://a/fn/web/ HTTP/1.1", "another form"),
        (b"GET a:80 HTTP/1.1", "another form"),
        (b"GET x HTTP/1.1", "another form"),
        (b"GET /a\\b HTTP/1.1", "backslash|without"),
        (b"GET /a#b HTTP/1.1", "without"),
        (b"GET /\x01 HTTP/1.1", "printable"),
        (b"GET /\x7f HTTP/1.1", "printable"),
        (b"GET /\x80 HTTP/1.1", "printable"),
        (b"GET /\tx HTTP/1.1", "printable"),
    ],
)
def test_malformed_request_lines_are_refused(line: bytes, word: str) -> None:
    """The text says what was expected, and quotes nothing but a version or a method it knows."""
    with pytest.raises(BadRequest, match=word):
        parse(line=line)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\r\n", b"\n\r\n"])
def test_a_request_line_ends_with_crlf(end: bytes) -> None:
    """A bare CR or LF is refused."""
    assert "expected" in refusal(b"GET /x HTTP/1.1" + end + b"Host: a\r\n\r\n")


def test_unusual_but_valid_request_lines() -> None:
    """Unknown methods and all printable characters of targets are passed on."""
    head = parse(line=b"M-SEARCH! /!\"$%&'()*+,-./0:;<=>?@A[]^_`a{|}~ HTTP/1.1")

    assert head.method == b"M-SEARCH!"
    assert head.target == b"/!\"$%&'()*+,-./0:;<=>?@A[]^_`a{|}~"
    assert parse(line=b"%b / HTTP/1.1" % (b"M" * 32)).target == b"/"


@pytest.mark.parametrize(
    "host",
    [b"a", b"a.example:80", b"127.0.0.1:65535", b"[::1]", b"[::ffff:1.2.3.4]:8080", b"a_b", b"%41"],
)
def test_hosts(host: bytes) -> None:
    """A host is a name or an address, with an optional port."""
    head = parse_request_head(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)

    assert head.fields.get(b"host") == host


@pytest.mark.parametrize(
    "host",
    [b"", b"a b", b"a/b", b"a@b", b"a:b", b"a:123456", b"[::1", b"a:1:2", b"a?", b"\xe9", b":80"],
)
def test_malformed_hosts_are_refused(host: bytes) -> None:
    """RFC 9112 section 3.2: an invalid Host is a bad request."""
    assert "Host: expected a host" in refusal(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)


def test_there_is_one_host() -> None:
    """A head without Host, or with two, is refused, even if both are equal."""
    assert "got none" in refusal(b"GET / HTTP/1.1\r\n\r\n")
    assert "got none" in refusal(b"GET / HTTP/1.0\r\n\r\n")
    assert "got several" in refusal(b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n")


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Transfer-Encoding: xchunked",
        b"A: b\r\n c",
        b"A : b",
        b"A: \0",
        b"Connection: content-length",
    ],
)
def test_malformed_fields_are_refused(line: bytes) -> None:
    """The strict rules of fields hold for requests."""
    with pytest.raises(BadRequest):
        parse(line)


def test_chunks_of_http_1_0_are_refused() -> None:
    """HTTP/1.0 has no Transfer-Encoding."""
    with pytest.raises(BadRequest, match="Transfer-Encoding"):
        parse(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0")


def test_the_size_of_a_head_is_limited() -> None:
    """A head of exactly the limit is accepted."""
    raw = b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n"
    fill = b"x" * (HEAD_MAX - len(raw) + 2)

    assert len(raw % fill) == HEAD_MAX == 32 * 1024
    assert parse_request_head(raw % fill).fields.get(b"x") == fill
    assert str(HEAD_MAX) in refusal(raw % (fill + b"x"), HeadTooLarge)


def test_the_number_of_fields_is_limited() -> None:
    """As many fields as the limit are accepted, one more is a head that is too large."""
    raw = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * (FIELDS_MAX - 1)

    assert len(parse_request_head(raw + b"\r\n").fields.lines) == FIELDS_MAX == 100
    assert str(FIELDS_MAX) in refusal(raw + b"A: b\r\n\r\n", HeadTooLarge)


@pytest.mark.parametrize(
    "raw",
    [
        b"S3CRET /x HTTP/1.1\r\n\r\n",
        b"GET S3CRET HTTP/1.1\r\n\r\n",
        b"GET / S3CRET/1.1\r\n\r\n",
        b"S3CRET",
        b"GET / HTTP/1.1\r\nS3CRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization S3CRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: S3CRET/\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: S3CRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: S3CRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: S3CRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n Authorization: S3CRET\r\n\r\n",
    ],
)
def test_no_refusal_quotes_the_request(raw: bytes) -> None:
    """A misplaced key does not appear in an answer or a log."""
    with pytest.raises(FnError) as caught:
        parse_request_head(raw)

    assert "s3cret" not in str(caught.value).lower()
