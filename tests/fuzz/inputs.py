"""Hostile inputs made from valid ones: damage, pieces that parsers stumble over, and bombs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

TOKENS = (
    b'"\\ud83d"', b"\\ud83d", b"\\u0000", b"\xff\xfe", b"\x00", b"\xef\xbb\xbf", b"9" * 25,
    b"9" * 5000, b"-0", b"1e999", b"NaN", b"Infinity", b"null", b"[]", b"{}", b'""', b"{", b"[",
    b"]", b"}", b",", b":", b"=", b".", b'"', b"'", b'"""', b"'''", b"\\", b"#", b"\n", b"\r\n",
    b"[[", b"]]", b"a.b.c = 1\n", b'"inputs":', b'"parameters":{', b'"model":"m",',
    b"1979-05-27T07:32:00Z", b"0x", b"--", b"\xff" * 5, b"\x80" * 9 + b"\x02",
    b"\x0a\xff\xff\xff\x7f", b"data: ", b'"usage":{', b"dims: [ 1 ]", b"<", b">",
    b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked", b"\r\nContent-Length: 5", b"0\r\n\r\n", b"\t",
    b"\r\nConnection: close", b"/../", b"%2e%2e/", b"%2F", b";", b"Basic ", b"fngate=x; ",
    b"; Path=/", b"fn_" + b"k" * 43, b"X_Api-Key: ", b'"choices":[]', b'"model":"m"', b"\xc2\xa0",
)  # fmt: skip
"""Pieces that end, begin or break something in one of the formats."""
REPEATED = (
    b"[", b"{", b'{"a":', b"[]", b"[],", b"{},", b"1,", b'"",', b"a.", b"[a]\n", b"[[a]]\n",
    b"{a=", b'"a":1,', b"-", b" ", b"\n", b"\\n", b"\\", b'"', b"'", b"\\u0041", b"9", b"#\n",
    b"\x0a\x00", b"\x08\x01", b"x { ", b"<", b"a: 1 ", b"\n--b\n", b"data: {}\n\n", b'\\"""\n',
    b'"\\"', b"k=1\n", b"\xc3\xa9", b'"usage":{', b"X: a\r\n", b"1\r\na\r\n", b"/..", b"%2F",
    b"fn_", b"a=b; ", b"a,", b"/./",
)  # fmt: skip
"""Pieces of which a bomb is made: each has a cost that its length does not show."""

Change = Callable[[random.Random, bytes], bytes]


def hostile(chance: random.Random, valid: bytes, size_max: int, *, is_bomb: bool) -> bytes:
    """Return a variant of a valid input, of at most `size_max` bytes.

    A bomb repeats a piece up to that size somewhere in the input; other variants are damaged in up
    to three places.
    """
    if is_bomb:
        return _bomb(chance, valid, size_max)[:size_max]
    data = valid
    for _ in range(chance.randrange(0, 4)):
        data = chance.choice(CHANGES)(chance, data)
    return data[:size_max]


def _flip(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _insert(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(TOKENS) + data[at:]


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _drop(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.randrange(1, 20) :]


def _double(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    end = at + chance.randrange(1, 200)
    return data[:end] + data[at:end] + data[end:]


def _replace(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(TOKENS) + data[at + chance.randrange(1, 9) :]


def _bomb(chance: random.Random, data: bytes, most: int) -> bytes:
    """Repeat pieces at a place where a value, a name or a line begins, or anywhere."""
    pieces = [chance.choice(REPEATED) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    piece = b"".join(pieces)
    count = max(1, int(most * chance.choice((0.02, 0.3, 0.5, 0.95, 1.0))) // len(piece))
    places = [found.end() for found in _PLACES.finditer(data)]
    at = chance.choice(places) if places and chance.random() < 0.9 else chance.randrange(len(data))
    is_nested, end = chance.random() < 0.3, at + chance.choice((0, 0, 1, 3))
    closing = piece.translate(_CLOSED)[::-1] * (count // 2) if is_nested else b""
    inner = piece * (count // 2 if is_nested else count) + closing
    return data[:at] + inner.rstrip(b"," * chance.randrange(2)) + data[end:]


_PLACES = re.compile(rb"""[\[{<=:,"'\n]\s*""")
_CLOSED = bytes.maketrans(b"[{<", b"]}>")
CHANGES: tuple[Change, ...] = (_flip, _insert, _cut, _drop, _double, _replace)
