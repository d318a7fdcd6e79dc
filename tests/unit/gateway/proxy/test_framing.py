"""Framers of bodies: the end of a body is found wherever reads are cut."""

from __future__ import annotations

from collections import deque

import pytest

from gateway.proxy.fields import Malformed, parse_fields
from gateway.proxy.framing import (
    CHUNKED,
    EXTENSIONS_MAX,
    LAST_CHUNK,
    NO_BODY,
    TRAILER_FIELDS_MAX,
    TRAILERS_MAX,
    UNTIL_CLOSE,
    BodyKind,
    ChunkedBody,
    Data,
    Framing,
    LengthBody,
    UntilCloseBody,
    encode_chunk,
    make_framer,
    read_framing,
)
from registry.field_classes import Direction


def refusal(raw: bytes, direction: Direction = Direction.REQUEST) -> str:
    """Return the text with which a chunked body is refused, however it is cut."""
    with pytest.raises(Malformed) as caught:
        ChunkedBody(direction).feed(raw)
    framer = ChunkedBody(direction)
    with pytest.raises(Malformed):
        feed_apart(framer, raw)
    assert framer.is_complete is False
    return str(caught.value)


def feed_apart(framer: ChunkedBody, raw: bytes) -> None:
    """Feed each byte alone."""
    for at in range(len(raw)):
        framer.feed(raw[at : at + 1])


def test_no_body() -> None:
    """No byte belongs to a body that is not there."""
    framer = make_framer(NO_BODY)
    content: list[Data] = []

    assert framer.is_complete is True
    assert framer.feed(b"next", content) == 0
    assert content == []


def test_a_body_of_a_known_length() -> None:
    """The bytes after the last one belong to the next message."""
    framer, content = LengthBody(5), list[Data]()

    assert framer.feed(b"abc", content) == 3
    assert (framer.is_complete, framer.missing) == (False, 2)
    assert framer.feed(b"defg", content) == 2
    assert (framer.is_complete, framer.missing) == (True, 0)
    assert framer.feed(b"g", content) == 0
    assert content == [b"abc", b"de"]


def test_a_body_of_length_zero_is_complete() -> None:
    """`Content-Length: 0` has nothing to wait for."""
    framer = LengthBody(0)

    assert framer.is_complete is True
    assert framer.feed(b"x") == 0


def test_a_body_until_the_end_of_the_connection() -> None:
    """Everything belongs to the body, which is never complete by itself."""
    framer, content = UntilCloseBody(), list[Data]()

    assert framer.feed(b"abc", content) == 3
    assert framer.feed(b"", content) == 0
    assert framer.feed(b"x") == 1
    assert framer.is_complete is False
    assert content == [b"abc"]


CHUNKS = b"5\r\nhello\r\n00A;a=b;c\r\n0123456789\r\n0\r\n\r\n"
TRAILED = b"1\r\nx\r\n000;last\r\nX-Sum: 1\r\nX-B:\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "content"), [(CHUNKS, b"hello0123456789"), (TRAILED, b"x"), (LAST_CHUNK, b"")]
)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_chunks(raw: bytes, content: bytes, kind: type[Data], step: int) -> None:
    """The end is found however the bytes are cut; what follows does not belong to the body."""
    framer, into, taken = ChunkedBody(), list[Data](), 0
    stream = raw + b"GET / HTTP/1.1\r\n\r\n"
    while not framer.is_complete:
        data = kind(stream[taken : taken + step])
        taken += framer.feed(data, into)

    assert taken == len(raw)
    assert b"".join(into) == content
    assert b"" not in into
    assert framer.feed(b"next", into) == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_chunk_that_arrives_alone(kind: type[Data]) -> None:
    """Content is collected from data that are exactly one chunk as from any other data; a chunk
    whose CRLF is wrong is malformed."""
    framer, into = ChunkedBody(), list[Data]()
    for raw in (b"3\r\nabc\r\n", b"A\r\n01234\r\n\r\n\n\r\n", b"1\r\n\n\r\n"):
        assert framer.feed(kind(raw), into) == len(raw)

    assert [bytes(piece) for piece in into] == [b"abc", b"01234\r\n\r\n\n", b"\n"]
    assert framer.is_complete is False
    with pytest.raises(Malformed):
        framer.feed(kind(b"3\r\nabcd\n"), into)


@pytest.mark.parametrize("end", range(len(TRAILED)))
def test_truncated_chunks_are_incomplete(end: int) -> None:
    """A body without its last line is not complete, and every byte so far belongs to it."""
    framer = ChunkedBody()

    assert framer.feed(TRAILED[:end]) == end
    assert framer.is_complete is False


@pytest.mark.parametrize(
    "size",
    [
        *(
            b"",
            b" 5",
            b"5 ",
            b"0x5",
            b"+5",
            b"-5",
            b"g",
            b"5\t",
            b"5 ;a",
            b"\xb2",
            b"5,5",
            b"0" * 16,
        ),
        *(b"5;", b"5;;a", b"5;a=", b"5;=a", b"5;a=b=c", b'5;a="b"', b"5;a b", b"5;\xff", b"5; a"),
        *(b"000000000000005;" + b"x" * (EXTENSIONS_MAX + 1), b"5;a\r"),
        b"000000000000005;" + b"x" * EXTENSIONS_MAX + b"\r",
        *(b"5;\0", b"5;\x7f", b"5;a\nb", b"5;a\rb", b"5\r", b"5;" + b"x" * (EXTENSIONS_MAX + 1)),
    ],
)
def test_malformed_sizes_are_refused(size: bytes) -> None:
    """A size is a few hexadecimal digits, with a bounded extension without control characters."""
    assert "size" in refusal(size + b"\r\nhello\r\n0\r\n\r\n")


def test_the_longest_size_line_is_accepted() -> None:
    """15 digits, and extensions up to the limit."""
    line = b"000000000000005;" + b"x" * (EXTENSIONS_MAX - 4) + b";a=b" + b"\r\n"
    raw = line + b"hello\r\n0\r\n\r\n"
    framer = ChunkedBody()

    assert framer.feed(raw) == len(raw)
    assert sum(ChunkedBody().feed(raw[:at]) == at for at in range(len(raw))) == len(raw)
    framer = ChunkedBody()
    assert [framer.feed(raw[at : at + 1]) for at in range(len(raw))] == [1] * len(raw)
    assert framer.is_complete is True


def test_a_size_line_ends_with_crlf() -> None:
    """A bare LF is refused."""
    assert "size" in refusal(b"5\nhello\r\n0\r\n\r\n")


@pytest.mark.parametrize("end", [b"xx", b"\n\r", b"\n", b"\r\r", b"\rx", b"0\r"])
def test_a_chunk_ends_with_crlf(end: bytes) -> None:
    """Content that is longer or shorter than its size is refused."""
    assert "CRLF after" in refusal(b"5\r\nhello" + end + b"\r\n0\r\n\r\n")


def test_the_limits() -> None:
    """They are part of what clients may rely on."""
    assert (EXTENSIONS_MAX, TRAILERS_MAX, TRAILER_FIELDS_MAX) == (256, 16 * 1024, 100)


def test_one_read_that_is_one_chunk() -> None:
    """A whole chunk leaves the framer at the next one, whatever its size line looks like."""
    framer = ChunkedBody()
    content = b"x" * 12
    for raw in (b"c\r\n", b"C\r\n", b"c;a=b\r\n", b"00c\r\n"):
        chunk = raw + content + b"\r\n"
        assert framer.feed(chunk) == len(chunk)
        assert framer.feed(memoryview(chunk)) == len(chunk)
    assert not framer.is_complete
    for raw in (b"c\r\n" + content + b"\rx", b"b\r\n" + content + b"\r\n"):
        with pytest.raises(Malformed, match="expected CRLF after"):
            ChunkedBody().feed(raw)
    assert framer.feed(b"0\r\n\r\n") == 5
    assert framer.is_complete
    assert framer.feed(chunk) == 0


def test_large_chunks_are_skipped() -> None:
    """The content of a chunk is not looked at."""
    framer = ChunkedBody()
    framer.feed(b"fffffffffffffff\r\n")
    data = b"\0" * 1_000_000

    assert framer.feed(data) == len(data)
    assert framer.is_complete is False


@pytest.mark.parametrize(
    "trailers",
    [
        b"Content-Length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"Host: b\r\n",
        b"Connection: close\r\n",
        b"Authorization: x\r\n",
        b"Cookie: x\r\n",
        b"Set-Cookie: x\r\n",
        b"Content-Type: x\r\n",
        b"Content-Encoding: x\r\n",
        b"Content-Range: x\r\n",
        b"Fn-Key: x\r\n",
        b"Forwarded: x\r\n",
        b"X-Forwarded-For: x\r\n",
        b"Expect: x\r\nX: y\r\n",
        b"X: y\r\nTrailer: x\r\n",
        b"TE: x\r\n",
        b"Upgrade: x\r\n",
    ],
)
@pytest.mark.parametrize("direction", Direction)
def test_trailers_cannot_change_the_message(trailers: bytes, direction: Direction) -> None:
    """RFC 9110 section 6.5.1; some servers join trailers and fields."""
    assert "in trailers" in refusal(b"0\r\n" + trailers + b"\r\n", direction)


@pytest.mark.parametrize(
    ("name", "directions"),
    [
        *((name, "request") for name in (b"Script-Name", b"SCRIPT_NAME", b"X_Any", b"X.Real.IP")),
        *((name, "request") for name in (b"X-HTTP-Method-Override", b"X-Api-Key", b"X-Real-IP")),
        *((name, "request answer") for name in (b"X-Accel-Redirect", b"X-Sendfile", b"Proxy-X")),
        *((name, "answer") for name in (b"X-Reproxy-URL", b"X-LIGHTTPD-send-file", b"Fn-Revision")),
        (b"fn-traceback", "answer"),
        *((name, "") for name in (b"X-Checksum", b"X.Any", b"Server-Timing")),
    ],
)
def test_trailers_have_no_field_of_a_class(name: bytes, directions: str) -> None:
    """A field that may not be in the head cannot come behind the body."""
    raw = b"0\r\n%b: x\r\n\r\n" % name
    for direction in Direction:
        if direction.value in directions:
            assert "in trailers" in refusal(raw, direction)
        else:
            assert ChunkedBody(direction).feed(raw) == len(raw)


def test_trailers_of_a_request_have_no_key() -> None:
    """They come after the keys were looked for, so the form of one suffices."""
    raw = b"0\r\nX-Sum: 1\r\nX-Any: fn_%b\r\n\r\n" % (b"k" * 43)

    assert "expected no keys in trailers" in refusal(raw)
    assert ChunkedBody(Direction.ANSWER).feed(raw) == len(raw)


@pytest.mark.parametrize(
    "trailers", [b"X : y\r\n", b"X\r\n", b" X: y\r\n", b"X: \0\r\n", b"X: a\nb\r\n"]
)
def test_trailers_are_as_strict_as_fields(trailers: bytes) -> None:
    """The rules of fields hold for trailers."""
    assert "expected" in refusal(b"0\r\n" + trailers + b"\r\n")


def test_trailers_are_limited() -> None:
    """Up to the limits of bytes and fields they are accepted."""
    most = b"A: b\r\n" * TRAILER_FIELDS_MAX + b"\r\n"
    fill = b"A: %b\r\n\r\n" % (b"x" * (TRAILERS_MAX - 7))

    assert len(fill) == TRAILERS_MAX
    for section in (most, fill):
        framer = ChunkedBody()
        assert framer.feed(b"0\r\n" + section + b"rest") == 3 + len(section)
        assert framer.is_complete is True
    assert "at most 100 fields" in refusal(b"0\r\nA: b\r\n" + most)
    assert str(TRAILERS_MAX) in refusal(b"0\r\n" + b"A: %b\r\n\r\n" % (b"x" * (TRAILERS_MAX - 6)))


def test_endless_trailers_are_refused() -> None:
    """Trailers without an end are refused at the limit, not kept."""
    framer = ChunkedBody()
    framer.feed(b"0\r\n")
    feed_apart(framer, b"x" * TRAILERS_MAX)
    with pytest.raises(Malformed, match=str(TRAILERS_MAX)):
        framer.feed(b"x")


@pytest.mark.parametrize(
    ("framing", "kind"),
    [
        (NO_BODY, LengthBody),
        (CHUNKED, ChunkedBody),
        (UNTIL_CLOSE, UntilCloseBody),
        (Framing(BodyKind.LENGTH, 3), LengthBody),
    ],
)
def test_each_framing_has_its_framer(framing: Framing, kind: type[object]) -> None:
    """A framer is made for the kind and length of a body."""
    framer = make_framer(framing)

    assert type(framer) is kind
    assert getattr(framer, "missing", 0) == framing.length


def test_content_is_encoded_as_chunks() -> None:
    """Nothing is no chunk, because a chunk of size zero ends the body."""
    assert encode_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert encode_chunk(memoryview(b"ab")) == b"2\r\nab\r\n"
    assert encode_chunk(b"") == b""


LINES = (
    b"5", b"5  ", b"5\t", b"5 ; a=b", b"5;a", b"5; a = b ;c", b'5;a="b c"', b'5 ; a = "\\"q;" ; z',
    b"0000000000000005", b'5;a="\xe9"',
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_an_answers_size_line_has_white_space_and_extensions(line: bytes, step: int) -> None:
    """Whatever RFC 9112 section 7.1 allows is read, in one piece and in many."""
    raw = line + b"\r\nhello\r\n0 ;z\r\n\r\n"
    body, content = ChunkedBody(Direction.ANSWER), []
    for at in range(0, len(raw), step):
        piece = raw[at : at + step]
        assert body.feed(piece, content) == len(piece)

    assert body.is_complete is True
    assert b"".join(content) == b"hello"


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    "line",
    [
        *(b" 5", b"\t5", b"+5", b"0x5", b"5 5", b"5 a", b"5;", b"5;a=", b'5;a="b', b"5 ;"),
        *(b'5;a="\n"', b'5;a="\r"', b'5;a="b\\\n"', b'5;="a"', b'5;a="b"c', b"5\x0b", b"5\0"),
        *(b"0" * 40 + b"5", b"5" * 16, b"5" + b" " * 300),
    ],
)
def test_what_is_no_size_line_is_refused(line: bytes, direction: Direction) -> None:
    """White space before a size, line feeds, control characters and open quotes, in pieces too."""
    with pytest.raises(Malformed):
        ChunkedBody(direction).feed(line + b"\r\nhello\r\n0\r\n\r\n")
    body, whole = ChunkedBody(direction), line + b"\r\nhello\r\n0\r\n\r\n"
    with pytest.raises(Malformed):
        deque((body.feed(bytes([byte])) for byte in whole), maxlen=0)


@pytest.mark.parametrize("line", [one for one in LINES if b" " in one or b'"' in one])
def test_a_requests_size_line_stays_strict(line: bytes) -> None:
    """What servers read in different ways never reaches one."""
    with pytest.raises(Malformed):
        ChunkedBody().feed(line + b"\r\nhello\r\n0\r\n\r\n")


def test_extensions_are_bounded_in_all() -> None:
    """A stream of small padded chunks goes on for ever; one of extensions alone does not."""
    padded = ChunkedBody(Direction.ANSWER)
    for _ in range(20_000):
        padded.feed(b"5       \r\nhello\r\n")
    with pytest.raises(Malformed, match="extensions"):
        ChunkedBody(Direction.ANSWER).feed((b"1;" + b"x" * 250 + b"\r\na\r\n") * 100)


@pytest.mark.parametrize(
    ("raw", "minor", "expected"),
    [
        (b"", 1, None),
        (b"Content-Length: 0\r\n", 1, Framing(BodyKind.LENGTH, 0)),
        (b"Content-Length: 10\r\n", 0, Framing(BodyKind.LENGTH, 10)),
        (b"Content-Length: %b\r\n" % (b"9" * 18), 1, Framing(BodyKind.LENGTH, 10**18 - 1)),
        (b"Transfer-Encoding: chunked\r\n", 1, CHUNKED),
        (b"transfer-encoding: Chunked\r\n", 1, CHUNKED),
    ],
)
def test_framing(raw: bytes, minor: int, expected: Framing | None) -> None:
    """A plain length or exactly `chunked` frame a body."""
    assert read_framing(parse_fields(raw + b"\r\n", 0, 9), minor) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: 05\r\n",
        b"Content-Length: 00\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: %b\r\n" % (b"9" * 19),
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding:\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked;a=b\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding:\r\n",
    ],
)
def test_ambiguous_framing_is_refused(raw: bytes) -> None:
    """Nothing is repaired."""
    with pytest.raises(Malformed, match=r"Content-Length|Transfer-Encoding"):
        read_framing(parse_fields(raw + b"\r\n", 0, 9), 1)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", "got several"),
        (b"Content-Length: 5, 5\r\n", "plain number of at most 18 digits"),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "got both"),
        (b"Transfer-Encoding: gzip\r\n", "exactly chunked"),
    ],
)
def test_the_refusal_of_framing_names_the_mistake(raw: bytes, word: str) -> None:
    """The text says what was expected."""
    with pytest.raises(Malformed, match=word):
        read_framing(parse_fields(raw + b"\r\n", 0, 9), 1)


def test_chunks_need_http_1_1() -> None:
    """HTTP/1.0 has no Transfer-Encoding (RFC 9112 section 6.1)."""
    with pytest.raises(Malformed, match=r"HTTP/1\.1"):
        read_framing(parse_fields(b"Transfer-Encoding: chunked\r\n\r\n", 0, 9), 0)
