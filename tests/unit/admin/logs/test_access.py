"""Tests of the access log's lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from gateway.observing.access_log import AccessEvent

from admin.logs.access import PIECE, access_writer

EVENT = AccessEvent(1.5, "digits", "digits@1", "r1", "ok", 2.0004, 0.1, is_cold=True)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe, closed afterwards."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_line_for_machines(pipe: tuple[int, int]) -> None:
    """JSON with the names that the server's log uses."""
    access_writer("json", pipe[1])([EVENT], 3)
    first, second = os.read(pipe[0], PIECE).splitlines()

    assert json.loads(first) == {
        "function": "digits",
        "revision": "digits@1",
        "replica": "r1",
        "outcome": "ok",
        "ms": 2.0,
        "queue_ms": 0.1,
        "is_cold": True,
        "event": "request",
        "level": "info",
        "timestamp": "1970-01-01T00:00:01.500000Z",
    }
    assert json.loads(second)["count"] == 3


def test_a_line_for_people(pipe: tuple[int, int]) -> None:
    """What became of it comes first."""
    access_writer("human", pipe[1])([EVENT, EVENT._replace(replica="", is_cold=False)], 1)
    first, second, third = os.read(pipe[0], PIECE).decode().splitlines()

    assert first == (
        "1970-01-01T00:00:01.500000Z [info     ] request                        ok cold"
        " ms=2.000 queue_ms=0.100 function=digits revision=digits@1 replica=r1"
    )
    assert second.endswith("replica=-")
    assert third == "[warning  ] access events left out         count=1"


def test_lines_are_never_torn(pipe: tuple[int, int]) -> None:
    """Each write ends with a line, and none is larger than a pipe takes whole."""
    writer = access_writer("human", pipe[1])
    writer([EVENT] * 100, 0)
    lines = b""
    while lines.count(b"\n") < 100:
        lines += os.read(pipe[0], 1_000_000)

    assert set(lines.splitlines()) == {lines.splitlines()[0]}


def test_a_reader_that_is_gone_is_no_error() -> None:
    """Requests go on."""
    reading, writing = os.pipe()
    os.close(reading)
    access_writer("json", writing)([EVENT], 0)
    os.close(writing)
