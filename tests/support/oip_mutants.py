"""Damaged bodies of the Open Inference Protocol's binary form."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

Body = tuple[bytes, int]
"""A body, and the length of its JSON part as the header says it."""
NUMBERS = (
    b"-1", b"0", b"1e999", b"1.5", b"9" * 4300, b"9" * 30, b"4294967296", b"9223372036854775807",
    b"-9223372036854775809", b"null", b"true", b'"1"', b"[]", b"{}", b"NaN", b"3.4028235e38",
    b"3.4028236e38", b"-Infinity",
)  # fmt: skip
PIECES = (
    b'"parameters":{"sequence_id":1},', b'"parameters":{"timeout":"x"},', b'"id":7,', b"[" * 2000,
    b'{"a":' * 2000, b'"inputs":[],', b'"data":[1],', b'"binary_data_size":4,',
    b'"classification":2,',
    b'"shared_memory_region":"r",', b'"shape":[0],', b"\xff\xfe", b"\x00", b"\\u0000", b'"',
    b"}", b",",
    b'"priority":9,', b'"triton_x":1,', b"\xff" * 4, b"\x00\x00\x00\x80",
)  # fmt: skip
_NUMBER = re.compile(rb"(?<=[:\[,])\d+")
_WORD = re.compile(rb'"[A-Za-z_0-9]+"')


def mutants(seed: int, bodies: list[Body], count: int) -> Iterator[Body]:
    """Return `count` bodies, each with one to four changes of one of `bodies`."""
    chance = random.Random(seed)
    for _ in range(count):
        body, length = chance.choice(bodies)
        for _ in range(chance.randrange(1, 5)):
            body, length = chance.choice(_CHANGES)(chance, body, length)
        yield body, length


def _flip(chance: random.Random, body: bytes, length: int) -> Body:
    if not body:
        return body, length
    at = chance.randrange(len(body))
    return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :], length


def _insert(chance: random.Random, body: bytes, length: int) -> Body:
    at = chance.randrange(len(body) + 1)
    piece = chance.choice(PIECES)
    return body[:at] + piece + body[at:], length + len(piece) * chance.choice((0, 1))


def _cut(chance: random.Random, body: bytes, length: int) -> Body:
    first, last = sorted(chance.choices(range(len(body) + 1), k=2))
    return body[:first] + body[last:], length - (last - first) * chance.choice((0, 1))


def _end(chance: random.Random, body: bytes, length: int) -> Body:
    return body[: chance.randrange(len(body) + 1)], length


def _lengthen(chance: random.Random, body: bytes, length: int) -> Body:
    return body + chance.randbytes(chance.randrange(1, 40)), length


def _length(chance: random.Random, body: bytes, length: int) -> Body:
    return body, chance.choice((0, 1, length - 1, length + 1, len(body), len(body) + 1, 10**10))


def _repeat(chance: random.Random, body: bytes, length: int) -> Body:
    first, last = sorted(chance.choices(range(max(0, min(length, len(body))) + 1), k=2))
    return body[:last] + body[first:], length + last - first


def _replace(
    pattern: re.Pattern[bytes], values: Callable[[random.Random, list[bytes]], bytes]
) -> Callable[[random.Random, bytes, int], Body]:
    def change(chance: random.Random, body: bytes, length: int) -> Body:
        found = list(pattern.finditer(body, 0, max(0, min(length, len(body)))))
        if not found:
            return body, length
        one = chance.choice(found)
        value = values(chance, [other[0] for other in found])
        return body[: one.start()] + value + body[one.end() :], length + len(value) - len(one[0])

    return change


_CHANGES = (
    _flip,
    _insert,
    _cut,
    _end,
    _lengthen,
    _length,
    _repeat,
    _replace(_NUMBER, lambda chance, _: chance.choice(NUMBERS)),
    _replace(_NUMBER, lambda chance, found: chance.choice(found)),
    _replace(_WORD, lambda chance, found: chance.choice(found)),
)
