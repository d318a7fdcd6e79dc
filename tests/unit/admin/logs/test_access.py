"""Tests of the access log's lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from admin.logs.access import PIECE, access_writer
from tests.support.records import RECEIPT, RECORD

COLD = RECORD._replace(
    trace_id="ab" * 16,
    receipt=RECEIPT._replace(phases={"start": 1.2345678, "load": 2.0, "made\nup": 1.0}),
)
REFUSED = RECORD._replace(
    outcome="unknown_function", status=404, function="", revision="", replica="", receipt=None
)
LEFT = RECORD._replace(outcome="client_left", status=0, receipt=None)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe, closed afterwards."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_line_for_machines(pipe: tuple[int, int]) -> None:
    """JSON with the names that the server's log uses."""
    access_writer("json", pipe[1])([RECORD], 3)
    first, second = os.read(pipe[0], PIECE).splitlines()

    assert json.loads(first) == {
        "request_id": "id-1",
        "function": "digits",
        "revision": "digits@1",
        "replica": "r1",
        "outcome": "ok",
        "status": 200,
        "bytes_in": 7,
        "bytes_out": 9,
        "ms": 1000.0,
        "queue_ms": 0.1,
        "sends": 1,
        "decode_ms": 1.0,
        "batch_ms": 2.0,
        "compute_ms": 3.0,
        "encode_ms": 4.0,
        "rows": 5,
        "is_cold": False,
        "event": "request",
        "level": "info",
        "timestamp": "1970-01-01T00:16:40.000000Z",
    }
    assert json.loads(second)["count"] == 3


def test_a_cold_start_and_a_trace_are_told_where_there_are_any(pipe: tuple[int, int]) -> None:
    """The phases by their names."""
    access_writer("json", pipe[1])([COLD], 0)
    line = json.loads(os.read(pipe[0], PIECE))

    assert (line["is_cold"], line["phases"]) == (True, {"start": 1.235, "load": 2.0})
    assert line["trace_id"] == "ab" * 16


def test_a_request_that_no_replica_answered_has_no_times_of_one(pipe: tuple[int, int]) -> None:
    """Nothing is said that is not known."""
    access_writer("json", pipe[1])([REFUSED], 0)
    line = json.loads(os.read(pipe[0], PIECE))

    assert (line["outcome"], line["status"], line["is_cold"]) == ("unknown_function", 404, False)
    assert not {"rows", "decode_ms", "phases", "trace_id"} & line.keys()


def test_lines_for_people(pipe: tuple[int, int]) -> None:
    """What became of it comes first."""
    access_writer("human", pipe[1])([COLD, REFUSED, LEFT], 1)
    first, second, third, fourth = os.read(pipe[0], PIECE).decode().splitlines()

    assert first == (
        "1970-01-01T00:16:40.000000Z [info     ] request                        ok cold"
        " status=200 ms=1000.000 queue_ms=0.100 function=digits revision=digits@1 replica=r1"
        " sends=1 bytes_in=7 bytes_out=9 decode_ms=1.000 batch_ms=2.000 compute_ms=3.000"
        " encode_ms=4.000 rows=5 start=1.235 load=2.000 request_id=id-1"
        f" trace_id={'ab' * 16}"
    )
    assert " unknown_function status=404 " in second
    assert " function=- revision=- replica=- " in second
    assert " client_left status=- " in third
    assert fourth == "[warning  ] access events left out         count=1"


def test_lines_are_never_torn(pipe: tuple[int, int]) -> None:
    """Each write ends with a line, and none is larger than a pipe takes whole."""
    writer = access_writer("human", pipe[1])
    writer([RECORD] * 100, 0)
    lines = b""
    while lines.count(b"\n") < 100:
        lines += os.read(pipe[0], 1_000_000)

    assert set(lines.splitlines()) == {lines.splitlines()[0]}


def test_a_reader_that_is_gone_is_no_error() -> None:
    """Requests go on."""
    reading, writing = os.pipe()
    os.close(reading)
    access_writer("json", writing)([RECORD], 0)
    os.close(writing)
