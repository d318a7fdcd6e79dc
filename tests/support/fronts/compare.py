"""Comparison of two gateways: the same byte stream must get the same answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.fronts.exchange import Seen, exchange
from tests.support.fronts.grammar import REST, Piece, Stream, make_stream, without_keys
from tests.support.fronts.sites import KEYED, Inline, Pair, both

REFUSED = (b"HTTP/1.0 400 Bad Request", b"HTTP/1.0 431 Request Header Fields Too Large")
"""Start line with which aiohttp answers bytes that are not HTTP; then it closes."""
_BELOW = re.compile(rb" /fn/[^ /?]+/")
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,7})\r\n", re.IGNORECASE)


@dataclass
class Tally:
    """Totals of many comparisons."""

    streams: int = 0
    plain: int = 0
    """Streams that the front had to answer by itself, and did."""
    handed_over: int = 0
    apart: int = 0
    """Streams answered alike only if aiohttp gets them in separate writes (see
    `_is_same_apart`)."""
    answers: dict[bytes, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    """Every defect found, with the seed that reproduces it."""

    def add(self, stream: Stream, plain: Seen, handed_over: int, seed: str) -> None:
        """Count one stream, and record its own defects."""
        self.streams += 1
        self.plain += stream.is_plain
        self.handed_over += handed_over
        if stream.is_plain and handed_over:
            self.differences.append(
                f"seed {seed!r}: plain, and still left to aiohttp: {stream!r:.3000}"
            )
        if not plain.is_over:
            self.differences.append(f"seed {seed!r}: the connection does not end: {stream!r:.3000}")
        for answer in plain.answers + plain.after:
            self.answers[answer.start] = self.answers.get(answer.start, 0) + 1
            if b" 500 " in answer.start:
                self.differences.append(f"seed {seed!r}: a defect: {answer}")


async def play(folder: Path, tally: Tally, seeds: Iterable[str], *, is_open: bool) -> None:
    """Compare one stream per seed. `is_open`: the servers require no keys."""
    logger = logging.getLogger("aiohttp.server")
    logger.disabled = True  # it would log every refused request
    try:
        await _play(folder, tally, seeds, is_open=is_open)
    finally:
        logger.disabled = False


async def _play(folder: Path, tally: Tally, seeds: Iterable[str], *, is_open: bool) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Inline(1))
    errors: list[object] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    async with both(folder, {} if is_open else KEYED) as pair:
        for seed in seeds:
            await compare(pair, tally, seed, is_open=is_open)
            if errors:
                tally.differences.append(f"seed {seed!r}: the loop caught {errors}")
                errors.clear()
        tally.differences += [f"left behind: {left}" for one in pair for left in one.left()]


async def compare(pair: Pair, tally: Tally, seed: str, *, is_open: bool) -> None:
    """Compare one stream made from `seed`."""
    stream = make_stream(Random(seed))
    await compare_stream(pair, tally, without_keys(stream) if is_open else stream, seed)


async def compare_stream(pair: Pair, tally: Tally, stream: Stream, seed: str) -> None:
    """Compare this stream; defects name it `seed`."""
    before = len(pair.fast.handed_over)
    fast = await exchange(pair.fast, stream)
    handed_over = len(pair.fast.handed_over) - before
    plain = await exchange(pair.plain, stream)
    tally.add(stream, plain, handed_over, seed)
    allowed = (
        fast == plain
        or _is_refused_alike(stream, fast, plain)
        or _is_refused_early(stream, fast, plain)
        or _is_ended_first(fast, plain)
        or _is_kept_by_front(stream, fast, plain)
    )
    if allowed:
        return
    if await _is_same_apart(pair, stream, fast, plain):
        tally.apart += 1
    else:
        tally.differences.append(
            f"seed {seed!r}: {stream!r:.3000}\n  fast:  {fast!r:.3000}\n  plain: {plain!r:.3000}"
        )


def _is_refused_alike(stream: Stream, fast: Seen, plain: Seen) -> bool:
    """Return whether both gateways refuse the last head, each in its own words.

    Below a function the front reads heads with the proxy's parser, whose texts are not aiohttp's.
    """
    if not (_BELOW.search(stream.data) and fast.answers and plain.answers):
        return False
    ours, theirs = fast.answers[-1], plain.answers[-1]
    if theirs.start not in REFUSED or (b"connection", b"close") not in ours.headers:
        return False
    is_same_status = ours.start.split()[1] == theirs.start.split()[1]
    return is_same_status and fast._replace(answers=(*fast.answers[:-1], theirs)) == plain


def _is_refused_early(stream: Stream, fast: Seen, plain: Seen) -> bool:
    """Return whether aiohttp alone refuses the last head, of which the end never comes.

    Below a function the front reads a head once it is whole; aiohttp refuses it at its first wrong
    line.
    """
    last = stream.data[max(_ends(stream.data), default=0) :]
    if b"\r\n\r\n" in last or not _BELOW.search(last):
        return False
    if not plain.answers or plain.answers[-1].start not in REFUSED:
        return False
    return fast._replace(answers=(*fast.answers, plain.answers[-1]), is_closed=True) == plain


def _is_ended_first(fast: Seen, plain: Seen) -> bool:
    """Return whether the front alone ended its answers before it had the rest of a refused body.

    Below a function it shuts its side of the connection with the answer, and reads the rest of the
    body for a while. aiohttp reads first.
    """
    if not fast.answers or (b"connection", b"close") not in fast.answers[-1].headers:
        return False
    return fast._replace(is_closed=False) == plain


def _is_kept_by_front(stream: Stream, fast: Seen, plain: Seen) -> bool:
    """Return whether aiohttp alone closes after its last answer, and says so.

    Below a function it does after every request (`gateway.http.exchange_route`); the front keeps
    the connection of a refused request without a body.
    """
    if not (_BELOW.search(stream.data) and fast.answers):
        return False
    last = fast.answers[-1]
    closing = last._replace(headers=tuple(sorted((*last.headers, (b"connection", b"close")))))
    return fast._replace(answers=(*fast.answers[:-1], closing), is_closed=True) == plain


async def _is_same_apart(pair: Pair, stream: Stream, fast: Seen, plain: Seen) -> bool:
    """Return whether the answers match once aiohttp gets the stream in separate writes.

    aiohttp discards complete requests that it read together with bytes that are not HTTP; sent a
    little earlier, the same requests are answered. The front answers what it parsed before handing
    over the rest, as RFC 9112 9.3.2 requires. So where aiohttp ends with a refusal, or closes with
    fewer answers since a body is malformed, its answers to the same bytes sent apart count as well.
    """
    is_refused = bool(plain.answers) and plain.answers[-1].start in REFUSED
    is_shorter = plain.is_closed and len(plain.answers) < len(fast.answers)
    if not is_refused and not is_shorter:
        return False
    ends: set[int] = set()
    for end in _ends(stream.data):
        ends.add(end)
        if fast == await exchange(pair.plain, _apart(stream, ends)):
            return True
    return False


def _ends(data: bytes) -> list[int]:
    """Return the end offsets of the complete requests at the start of the stream."""
    ends = []
    at = 0
    while (head := data.find(b"\r\n\r\n", at)) >= 0:
        said = _LENGTH.search(data, at, head + 2)
        at = head + 4 + (int(said[1]) if said else 0)
        if said is None or at > len(data):
            break
        ends.append(at)
    return ends


def _apart(stream: Stream, ends: set[int]) -> Stream:
    """Return the same bytes with an additional pause at each of `ends`."""
    pieces = []
    at = 0
    for data, turns in stream.pieces:
        cuts = sorted(end - at for end in ends if at < end < at + len(data))
        edges = [0, *cuts, len(data)]
        parts = [data[a:b] for a, b in itertools.pairwise(edges)]
        pieces += [Piece(part, REST) for part in parts[:-1]] + [Piece(parts[-1], turns)]
        at += len(data)
    return stream._replace(pieces=tuple(pieces))
