"""Byte streams that clients may send over one connection, generated from a seed."""

from __future__ import annotations

import itertools
import re
from random import Random
from typing import NamedTuple

from tests.support.fronts.requests import odd, plain

REST = 0
"""Value of `turns`: wait until the server is quiescent."""


class Piece(NamedTuple):
    """Bytes of one write and the loop turns before the next: at least two, so that both gateways
    read them separately."""

    data: bytes
    turns: int


class Stream(NamedTuple):
    """One connection. `is_plain`: the fast front has to answer all of it by itself."""

    pieces: tuple[Piece, ...]
    is_plain: bool
    closes: bool
    """Whether the client finally closes, instead of only sending EOF."""

    @property
    def data(self) -> bytes:
        """Return all bytes of the stream."""
        return b"".join(piece.data for piece in self.pieces)


def make_stream(random: Random) -> Stream:
    """Return any stream; equal states of `random` give equal streams."""
    kind = random.random()
    if kind < 0.3:
        return Stream(_one_by_one(random), True, random.random() < 0.5)
    count = random.choice((1, 1, 1, 2, 3, 6))
    if kind < 0.45:
        data = b"".join(plain(random) for _ in range(max(2, count)))
    else:
        share = random.choice((0.0, 0.5))
        made = [plain(random) if random.random() < share else odd(random) for _ in range(count)]
        data = b"".join(made)
    if random.random() < 0.15:
        data = _mutated(random, data)
    if random.random() < 0.12:
        data = data[: random.randrange(len(data) + 1)]
    return Stream(_split(random, data), False, random.random() < 0.5)


def without_keys(stream: Stream) -> Stream:
    """Return the stream for a server without keys: same lengths and offsets, but all keys
    invalid."""
    pieces = [Piece(_KEY.sub(b"x-authorizing", data), turns) for data, turns in stream.pieces]
    return stream._replace(pieces=tuple(pieces))


_KEY = re.compile(rb"authorization(?=: ?Bearer fn_a)", re.IGNORECASE)


def _one_by_one(random: Random) -> tuple[Piece, ...]:
    """Plain requests, each sent after the previous answer, with bodies in pieces."""
    pieces = []
    for _ in range(random.choice((1, 1, 2, 4))):
        raw = plain(random)
        head = raw.find(b"\r\n\r\n") + 4
        cuts = sorted(
            random.randrange(head, len(raw) + 1) for _ in range(random.choice((0, 0, 1, 3)))
        )
        edges = [0, *(cut for cut in cuts if head < len(raw)), len(raw)]
        parts = [raw[a:b] for a, b in itertools.pairwise(edges) if b > a]
        pieces += [Piece(part, random.choice((REST, 2, 5))) for part in parts[:-1]]
        pieces.append(Piece(parts[-1], REST))
    return tuple(pieces)


def _split(random: Random, data: bytes) -> tuple[Piece, ...]:
    """Split `data`: not at all, in a few pieces, or byte by byte around a random offset."""
    kind = random.random()
    cuts: set[int] = set()
    if kind < 0.5:
        cuts = {random.randrange(len(data) + 1) for _ in range(random.choice((1, 2, 5)))}
    elif kind < 0.6:
        start = random.randrange(len(data) + 1)
        cuts = set(range(start, min(len(data), start + 30)))
    edges = sorted({0, len(data)} | cuts)
    turns = random.choice((REST, 2, 3, 8))
    parts = [data[a:b] for a, b in itertools.pairwise(edges)]
    return tuple(Piece(part, turns) for part in parts)


_TOKENS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"\r\n\r\n",
    b"0",
    b"\xff",
    b"HTTP/1.1",
    b"POST /fn/digits HTTP/1.1\r\n",
    b"Content-Length: 0\r\n",
    b",",
    b";",
    b"chunked",
)


def _mutated(random: Random, data: bytes) -> bytes:
    """Insert, delete, change or double a few bytes, mostly in heads."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(min(len(out), 600) + 1 if random.random() < 0.8 else len(out) + 1)
        kind = random.randrange(5)
        if kind == 0:
            out[at:at] = random.choice(_TOKENS)
        elif kind == 1:
            del out[at : at + random.choice((1, 1, 2, 20))]
        elif kind == 2:
            out[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 3:
            out[at:at] = out[at : at + random.choice((1, 10, 60))]
        else:
            out[at : at + 2] = random.choice(_TOKENS)
    return bytes(out)
