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
BARE_END: Final = "expected CRLF at the end of each line, got a bare CR or LF"
# Possessive, so that a section is refused in linear time.
_SECTION: Final = re.compile(rb"(?:" + TOKEN + rb"+:[\t\x20-\x7e\x80-\xff]*+\r\n)*+\r\n")
_NAME: Final = re.compile(TOKEN)
_PADDED_NAME: Final = re.compile(TOKEN + rb"[ \t]+")
HEAD_END: Final = b"\r\n\r\n"
_BARE: Final = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n")
_PROTECTED: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})


class Malformed(ValueError):
    """Bytes that are not valid HTTP/1.1.

    The text says what was expected; it never quotes field values, which may be secrets.
    """


class Fields(NamedTuple):
    """The fields of one head or trailer section.

    `lines`: all fields in their order; `names`: their names in lower case. `values`: value by
    lower-case name. The values of a repeated field are joined (RFC 9110 section 5.3), so that a
    field that may not repeat becomes invalid. `repeated`: lower-case names that occur more than
    once.
    """

    lines: tuple[Field, ...]
    names: tuple[bytes, ...]
    values: dict[bytes, bytes]
    repeated: frozenset[bytes] = frozenset()

    def get(self, name: bytes) -> bytes:
        """Return the value of a field by its lower-case name, b"" if there is none."""
        return self.values.get(name, b"")

    def items(self, name: bytes) -> list[bytes]:
        """Return the lower-case items of a comma-separated list, without empty ones."""
        value = self.values.get(name)
        return (
            []
            if value is None
            else [item for part in value.lower().split(b",") if (item := part.strip(b" \t"))]
        )


def find_head_end(data: bytes | bytearray, start: int = 0) -> int:
    """Return the index behind the empty line that ends a head, -1 if there is none yet.

    `start`: number of bytes that were searched before. Raises Malformed for an incomplete head with
    a CR or LF that stands alone: RFC 9112 section 2.2 lets a recipient take LF for a line's end,
    but two recipients that differ there see different messages. Its sender may be waiting for an
    answer, so the end of such a head is not awaited.
    """
    found = data.find(HEAD_END, max(0, start - len(HEAD_END) + 1))
    if found >= 0:
        return found + len(HEAD_END)
    if _BARE.search(data, max(0, start - 1)):
        raise Malformed(BARE_END)
    return -1


def parse_fields(raw: bytes, start: int, count_max: int) -> Fields:
    """Parse the field lines of `raw` from `start` up to the empty line, which ends `raw`.

    Raises Malformed, also if there are more than `count_max` fields.
    """
    if not _SECTION.fullmatch(raw, start):
        raise Malformed(_what_is_wrong(raw[start:]))
    if raw.count(b"\n", start) > count_max + 1:
        raise Malformed(f"expected at most {count_max} fields, got more")
    lines: list[Field] = []
    for line in raw[start:-4].split(b"\r\n") if len(raw) - start > 2 else ():
        name, _, value = line.partition(b":")
        lines.append((name, value.strip(b" \t")))
    names = tuple([name.lower() for name, _ in lines])
    values = dict(zip(names, [value for _, value in lines], strict=True))
    if len(values) == len(lines):
        return Fields(tuple(lines), names, values)
    return _joined(lines, names)


def _joined(lines: list[Field], names: tuple[bytes, ...]) -> Fields:
    """Return fields of which at least one is repeated."""
    several: dict[bytes, list[bytes]] = {}
    for low, (_, value) in zip(names, lines, strict=True):
        several.setdefault(low, []).append(value)
    values = {
        low: (b"; " if low == b"cookie" else b", ").join(found) for low, found in several.items()
    }
    repeated = frozenset(low for low, found in several.items() if len(found) > 1)
    return Fields(tuple(lines), names, values, repeated)


def _what_is_wrong(section: bytes) -> str:
    """Return what is wrong with the first malformed line of a section, without quoting it."""
    *lines, _ = section.split(b"\n")
    for line in lines:
        name, colon, value = line.removesuffix(b"\r").partition(b":")
        if line[:1] in (b" ", b"\t"):
            return "expected one line per field, got a folded one"
        if not line.endswith(b"\r") or b"\r" in line[:-1]:
            return BARE_END
        if line == b"\r":
            return "expected nothing after the empty line"
        if not colon:
            return "expected a colon in each field line, got none"
        if _PADDED_NAME.fullmatch(name):
            return "expected the colon right after a field's name, got white space"
        if not _NAME.fullmatch(name):
            return "expected a token as field name (RFC 9110), got other characters"
        if not _SECTION.fullmatch(b"A:%b\r\n\r\n" % value):
            return "expected no control characters in field values"
    return "expected an empty line after the last field"


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
