"""The project's own load generator: answers are separated, errors counted, calls ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest

from benchmarks.load import HEAD_MAX, Caller, Tally

REQUEST = b"POST / HTTP/1.1\r\n\r\n"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
BAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


class Wire(asyncio.Transport):
    """Bytes that a caller wrote, and whether it closed the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True


def calling(each: int) -> tuple[Caller, Wire, Tally]:
    """Return a caller that has sent its first request."""
    tally, wire = Tally(REQUEST, each), Wire()
    caller = Caller(tally)
    caller.connection_made(wire)
    caller.call()
    return caller, wire, tally


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Split `data` into pieces, as a network may."""
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
async def test_answers_are_separated_wherever_they_are_cut(size: int) -> None:
    """The next request is sent once an answer is complete, not earlier."""
    caller, wire, tally = calling(each=2)
    for piece in pieces(GOOD[:-1], size):
        caller.data_received(piece)
    assert wire.written == [REQUEST]

    caller.data_received(GOOD[-1:])
    assert wire.written == [REQUEST] * 2
    for piece in pieces(GOOD, size):
        caller.data_received(piece)

    assert caller.ended.done()
    assert wire.closed
    assert (len(tally.taken_s), tally.errors) == (2, 0)


async def test_other_answers_are_errors() -> None:
    """Other statuses count as errors without a latency, and the caller continues."""
    caller, wire, tally = calling(each=2)
    caller.data_received(BAD)
    caller.data_received(GOOD)

    assert (len(tally.taken_s), tally.errors) == (1, 1)
    assert len(wire.written) == 2


async def test_a_connection_that_breaks_is_an_error_once() -> None:
    """A break within an answer is one error; after the last answer it is none."""
    caller, _, tally = calling(each=1)
    caller.data_received(GOOD[:10])
    caller.connection_lost(None)
    caller.connection_lost(None)
    assert (tally.errors, caller.ended.done()) == (1, True)

    caller, _, tally = calling(each=1)
    caller.data_received(GOOD)
    caller.connection_lost(None)
    assert tally.errors == 0


async def test_an_endless_head_ends_the_connection() -> None:
    """An endless head closes the connection, so that memory stays bounded."""
    caller, wire, tally = calling(each=1)
    caller.data_received(b"x" * (HEAD_MAX + 1))

    assert (tally.errors, wire.closed) == (1, True)


@pytest.mark.parametrize(
    ("each", "done", "now_s", "expected"),
    [(2, 1, math.inf, True), (2, 2, 0.0, False), (0, 99, 1.9, True), (0, 1, 2.0, False)],
)
def test_a_load_ends_by_count_or_by_time(
    each: int, done: int, now_s: float, expected: bool
) -> None:
    """A load ends by count or by time, as requested."""
    assert Tally(REQUEST, each, until_s=2.0).goes_on(done, now_s) is expected
