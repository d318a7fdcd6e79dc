"""Ends of HTTP/1.1 bodies (RFC 9112 sections 6 and 7): incremental framers, and chunk encoding.

A framer finds the end of a body; the bytes themselves are passed on as they were read.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple, Protocol

from gateway.proxy.fields import TOKEN, Fields, Malformed, parse_fields
from registry.field_classes import Direction, is_barred
from registry.key_form import KEY_FORM

Data = bytes | bytearray | memoryview
LENGTH_DIGITS_MAX: Final = 18
TRAILERS_MAX: Final = 16 * 1024
TRAILER_FIELDS_MAX: Final = 100
EXTENSIONS_MAX: Final = 256
"""Max bytes of a chunk's extensions. White space, quoted values (RFC 9112 section 7.1.1) and more
leading zeros are accepted in answers alone: what parsers disagree about is no request."""
ALL_EXTENSIONS_MAX: Final = 16 * 1024
"""Max bytes by which the extensions of a body may exceed its content and EXTENSION_SPARE bytes for
each chunk."""
EXTENSION_SPARE: Final = 16
LAST_CHUNK: Final = b"0\r\n\r\n"
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,%d}" % (LENGTH_DIGITS_MAX - 1))
_SIZE_LINE_MAX: Final = 16 + 15 + 1 + EXTENSIONS_MAX + 2
_SIZE_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})((?:;" + TOKEN + rb"+(?:=" + TOKEN + rb"+)?+)*+)\r\n"
)
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
# Any beginning of a size line, and a little more: the whole line is checked once it is there.
_SIZE_LINE_BEGUN: Final = re.compile(
    rb"(?:[0-9A-Fa-f]{1,15}(?:;[!#$%%&'*+.^_`|~0-9A-Za-z;=-]{0,%d})?\r?)?" % EXTENSIONS_MAX
)
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"'
_VALUE: Final = rb"(?:" + TOKEN + rb"+|" + _QUOTED + rb")"
_ANSWER_LINE: Final = re.compile(
    rb"(0{0,16}[0-9A-Fa-f]{1,15})([ \t]*+(?:;[ \t]*+"
    + TOKEN
    + rb"+[ \t]*+(?:=[ \t]*+"
    + _VALUE
    + rb"[ \t]*+)?+)*+)\r\n"
)
_ANSWER_LINE_BEGUN: Final = re.compile(
    rb"(?:0{0,16}[0-9A-Fa-f]{1,15}(?:[ \t;][\t -~\x80-\xff]{0,%d})?\r?)?" % EXTENSIONS_MAX
)


class BodyKind(Enum):
    """How the end of a body is found."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


class Framing(NamedTuple):
    """Framing of one body; `length` in bytes, only for LENGTH."""

    kind: BodyKind
    length: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it is known from the head that no byte follows."""
        return self.kind is BodyKind.NONE or (self.kind is BodyKind.LENGTH and not self.length)


NO_BODY: Final = Framing(BodyKind.NONE)
CHUNKED: Final = Framing(BodyKind.CHUNKED)
UNTIL_CLOSE: Final = Framing(BodyKind.UNTIL_CLOSE)


def read_framing(fields: Fields, minor: int) -> Framing | None:
    """Return how Content-Length or Transfer-Encoding frame the body, None if neither is there.

    Raises Malformed if two recipients of an HTTP/1.`minor` message could disagree about the end of
    its body (RFC 9112 section 6).
    """
    length, coding = fields.values.get(b"content-length"), fields.values.get(b"transfer-encoding")
    if length is None and coding is None:
        return None
    if coding is None and length is not None:
        if b"content-length" in fields.repeated:
            raise Malformed("Content-Length: expected one field, got several")
        if not _LENGTH.fullmatch(length):
            raise Malformed(
                f"Content-Length: expected a plain number of at most {LENGTH_DIGITS_MAX} digits"
            )
        return Framing(BodyKind.LENGTH, int(length))
    if length is not None:
        raise Malformed("expected Content-Length or Transfer-Encoding, got both")
    if minor == 0:
        raise Malformed("Transfer-Encoding: expected HTTP/1.1, got HTTP/1.0")
    if coding is None or coding.lower() != b"chunked":
        raise Malformed("Transfer-Encoding: expected exactly chunked")
    return CHUNKED


class BodyFramer(Protocol):
    """Finds the end of one body."""

    is_complete: bool

    def feed(self, data: Data, into: list[Data] | None = None) -> int:
        """Return how many bytes of `data` belong to the body; fewer than all only at its end.

        `into` collects the content without chunk framing. Raises Malformed.
        """


class LengthBody:
    """Body of a known length, 0 where there is none. `missing`: bytes still to come."""

    __slots__ = ("is_complete", "missing")

    def __init__(self, length: int) -> None:
        self.missing = length
        self.is_complete = not length

    def feed(self, data: Data, into: list[Data] | None = None) -> int:
        """Return how many bytes of `data` belong to the body."""
        count = min(len(data), self.missing)
        self.missing -= count
        self.is_complete = not self.missing
        if into is not None and count:
            into.append(data if count == len(data) else data[:count])
        return count


class UntilCloseBody:
    """Body of an answer that ends with the connection."""

    __slots__ = ("is_complete",)

    def __init__(self) -> None:
        self.is_complete = False

    def feed(self, data: Data, into: list[Data] | None = None) -> int:
        """Return the length of `data`: everything belongs to the body."""
        if into is not None and data:
            into.append(data)
        return len(data)


class _Part(Enum):
    SIZE = 0
    DATA = 1
    TRAILERS = 2


class ChunkedBody:
    """Chunked body: its chunks, the last chunk and its trailer section."""

    __slots__ = ("_direction", "_excess", "_line", "_missing", "_part", "is_complete")

    def __init__(self, direction: Direction = Direction.REQUEST) -> None:
        self.is_complete = False
        self._direction = direction
        self._part = _Part.SIZE
        self._missing = self._excess = 0
        self._line = b""

    def feed(self, data: Data, into: list[Data] | None = None) -> int:
        """Return how many bytes of `data` belong to the body; see `BodyFramer`.

        Takes time in proportion to the number of chunks: their content is not looked at.
        """
        at, end = 0, len(data)
        is_next = self._part is _Part.SIZE and not (self._line or self.is_complete)
        if is_next and (found := _SIZE.match(data)) is not None:
            # Exactly one chunk, as servers write each event of a stream.
            size, begin = int(found[1], 16), found.end()
            if size and begin + size + 2 == end and data[-2:] == b"\r\n":
                if into is not None:
                    into.append(data[begin:-2])
                return end
        while at < end and not self.is_complete:
            if self._part is _Part.DATA:
                at = self._skip(data, at, into)
            elif self._part is _Part.SIZE:
                at = self._read_size(data, at)
            else:
                at = self._read_trailers(data, at)
        return at

    def _read_size(self, data: Data, at: int) -> int:
        """Read a line with the size of a chunk, or keep the part of it that is there."""
        begun = len(self._line)
        if begun:
            data, at = self._line + bytes(data[at : at + _SIZE_LINE_MAX]), at - begun
        start = 0 if begun else at
        is_answer = self._direction is Direction.ANSWER
        found = (_ANSWER_LINE if is_answer else _SIZE_LINE).match(data, start)
        if found is None or len(found[2]) > EXTENSIONS_MAX + 1:
            rest = bytes(data[start : start + _SIZE_LINE_MAX])
            if not (_ANSWER_LINE_BEGUN if is_answer else _SIZE_LINE_BEGUN).fullmatch(rest):
                raise Malformed("expected a chunk's size in hexadecimal digits and CRLF")
            self._line = rest
            return at + len(rest)
        self._line = b""
        self._missing = int(found[1], 16)
        excess = self._excess + len(found[2]) - EXTENSION_SPARE - self._missing
        self._excess = max(excess, 0)
        if excess > ALL_EXTENSIONS_MAX:
            raise Malformed("expected less extensions of chunks than content")
        if self._missing:
            self._part = _Part.DATA
            self._missing += 2  # its CRLF
        else:
            self._part = _Part.TRAILERS
        return at + found.end() - start

    def _skip(self, data: Data, at: int, into: list[Data] | None) -> int:
        """Skip a chunk's content and check the CRLF after it."""
        end = min(len(data), at + self._missing)
        content = min(end, at + self._missing - 2)
        if into is not None and content > at:
            into.append(data[at:content])
        tail = max(content, at)
        if tail < end:
            owed = b"\r\n"[2 - min(self._missing, 2) :]
            if bytes(data[tail:end]) != owed[: end - tail]:
                raise Malformed("expected CRLF after a chunk's content")
        self._missing -= end - at
        if not self._missing:
            self._part = _Part.SIZE
        return end

    def _read_trailers(self, data: Data, at: int) -> int:
        """Read the trailer section up to its empty line."""
        begun = self._line
        section = begun + bytes(data[at : at + TRAILERS_MAX - len(begun) + 1])
        if section[:2] == b"\r\n":
            self.is_complete = True
            return at + 2 - len(begun)
        end = section.find(b"\r\n\r\n", max(len(begun) - 3, 0))
        if end >= 0:
            section = section[: end + 4]
        if len(section) > TRAILERS_MAX:
            raise Malformed(f"expected trailers of at most {TRAILERS_MAX} bytes")
        if end < 0:
            self._line = section
            return at + len(section) - len(begun)
        self._check(parse_fields(section, 0, TRAILER_FIELDS_MAX), section)
        self._line = b""
        self.is_complete = True
        return at + len(section) - len(begun)

    def _check(self, trailers: Fields, section: bytes) -> None:
        """Raise Malformed for trailers that some recipients join with the fields of the head.

        Trailers are passed on as they were read, so none can be dropped; and a request's come after
        its keys were looked for, so whatever has the form of one is refused.
        """
        if any(is_barred(name, self._direction) for name in trailers.values):
            raise Malformed("expected no fields about framing, routing or access in trailers")
        if self._direction is Direction.REQUEST and KEY_FORM.search(section):
            raise Malformed("expected no keys in trailers, which servers of functions get")


def make_framer(framing: Framing, direction: Direction = Direction.REQUEST) -> BodyFramer:
    """Return a new framer of a body of a request, or of an answer."""
    if framing.kind is BodyKind.CHUNKED:
        return ChunkedBody(direction)
    if framing.kind is BodyKind.UNTIL_CLOSE:
        return UntilCloseBody()
    return LengthBody(framing.length)


def encode_chunk(content: Data) -> bytes:
    """Return `content` as one chunk; b"" for no content."""
    return b"".join((b"%x\r\n" % len(content), content, b"\r\n")) if len(content) else b""
