"""Header fields of HTTP/1.1 messages, parsed strictly (RFC 9110 section 5, RFC 9112 section 5).

Two parsers must not understand a field differently: whatever is not plainly valid is refused.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

Field = tuple[bytes, bytes]
"""Name as sent, and value without the white space around it."""

TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""RFC 9110 section 5.6.2."""
LENGTH_DIGITS_MAX: Final = 18
_LINE: Final = re.compile(
    rb"("
    + TOKEN
    + rb"):[ \t]*((?:[\x21-\x7e\x80-\xff]+(?:[ \t]+[\x21-\x7e\x80-\xff]+)*)?)[ \t]*\r\n"
)
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,%d}" % (LENGTH_DIGITS_MAX - 1))
_PROTECTED: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})


class Malformed(ValueError):
    """Bytes that are not valid HTTP/1.1.

    The text says what was expected; it never quotes field values, which may be secrets.
    """


class Fields(NamedTuple):
    """The fields of one head or trailer section.

    `lines`: all fields in their order. `values`: value by lower-case name; the values of a repeated
    field are joined (RFC 9110 section 5.3), so that a repeated single-valued field is never valid.
    `repeated`: lower-case names that occur more than once.
    """

    lines: tuple[Field, ...]
    values: dict[bytes, bytes]
    repeated: frozenset[bytes] = frozenset()

    def get(self, name: bytes) -> bytes:
        """Return the value of a field by its lower-case name, b"" if there is none."""
        return self.values.get(name, b"")

    def items(self, name: bytes) -> list[bytes]:
        """Return the lower-case items of a comma-separated list, without empty ones."""
        value = self.values.get(name)
        return [] if value is None else split_list(value)


def split_list(value: bytes) -> list[bytes]:
    """Return the lower-case items of a comma-separated list, without empty ones."""
    return [item for part in value.lower().split(b",") if (item := part.strip(b" \t"))]


def parse_fields(raw: bytes, start: int, count_max: int) -> Fields:
    """Parse the field lines of `raw` from `start` up to the empty line, which ends `raw`.

    Raises Malformed, also if there are more than `count_max` fields.
    """
    lines: list[Field] = []
    end = len(raw) - 2
    match = _LINE.match
    while start < end:
        found = match(raw, start)
        if found is None:
            raise Malformed(_what_is_wrong(raw, start))
        lines.append((found[1], found[2]))
        start = found.end()
    if start != end or raw[end:] != b"\r\n":
        raise Malformed("expected an empty line after the last field")
    if len(lines) > count_max:
        raise Malformed(f"expected at most {count_max} fields, got {len(lines)}")
    values = {name.lower(): value for name, value in lines}
    if len(values) == len(lines):
        return Fields(tuple(lines), values)
    return _joined(lines)


def _joined(lines: list[Field]) -> Fields:
    several: dict[bytes, list[bytes]] = {}
    for name, value in lines:
        several.setdefault(name.lower(), []).append(value)
    values = {
        name: (b"; " if name == b"cookie" else b", ").join(found) for name, found in several.items()
    }
    repeated = frozenset(name for name, found in several.items() if len(found) > 1)
    return Fields(tuple(lines), values, repeated)


def _what_is_wrong(raw: bytes, start: int) -> str:
    """Return what is wrong with the field line at `start`, without quoting it."""
    end = raw.find(b"\r\n", start)
    line = raw[start:] if end < 0 else raw[start:end]
    if line[:1] in (b" ", b"\t"):
        return "expected one line per field, got a folded one"
    name, colon, value = line.partition(b":")
    if not colon:
        return "expected a colon in each field line, got none"
    if re.fullmatch(TOKEN + rb"[ \t]+", name):
        return "expected the colon right after a field's name, got white space"
    if not re.fullmatch(TOKEN, name):
        return "expected a token as field name (RFC 9110), got other characters"
    if b"\n" in value or b"\r" in value:
        return "expected CRLF at the end of each line, got a bare CR or LF"
    return "expected no control characters in field values"


class FramingFields(NamedTuple):
    """What the fields Content-Length and Transfer-Encoding say.

    `length`: None where there is no Content-Length.
    """

    length: int | None
    is_chunked: bool


def read_framing(fields: Fields, minor: int) -> FramingFields:
    """Return what the fields say about a body of an HTTP/1.`minor` message.

    Raises Malformed if two recipients could disagree about its end (RFC 9112 section 6).
    """
    length, coding = fields.values.get(b"content-length"), fields.values.get(b"transfer-encoding")
    if length is None and coding is None:
        return FramingFields(None, is_chunked=False)
    if coding is None and length is not None:
        if b"content-length" in fields.repeated:
            raise Malformed("Content-Length: expected one field, got several")
        if not _LENGTH.fullmatch(length):
            raise Malformed(
                f"Content-Length: expected a number of at most {LENGTH_DIGITS_MAX} digits"
            )
        return FramingFields(int(length), is_chunked=False)
    if length is not None:
        raise Malformed("expected Content-Length or Transfer-Encoding, got both")
    if minor == 0:
        raise Malformed("Transfer-Encoding: expected HTTP/1.1, got HTTP/1.0")
    if coding is None or coding.lower() != b"chunked":
        raise Malformed("Transfer-Encoding: expected exactly chunked")
    return FramingFields(None, is_chunked=True)


def read_connection(fields: Fields, minor: int) -> tuple[bool, frozenset[bytes]]:
    """Return whether the connection persists, and the options of the field Connection.

    Raises Malformed if an option names a field that no hop may remove.
    """
    if b"connection" not in fields.values:
        return minor == 1, frozenset()
    options = frozenset(fields.items(b"connection"))
    if _PROTECTED & options:
        raise Malformed("Connection: expected names of hop-by-hop fields, got one of the message")
    return b"close" not in options and (minor == 1 or b"keep-alive" in options), options
