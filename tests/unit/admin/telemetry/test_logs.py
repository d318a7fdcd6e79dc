"""Tests of the server's log and the access log."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

from admin.telemetry import logs
from admin.telemetry.logs import AT_ONCE, PIPE_PIECE, access_writer
from gateway.observing.access_log import AccessEvent

LOGS = """
import sys, structlog
from admin.telemetry import logs
logs.set_up(sys.argv[1])
log = structlog.get_logger()
log.debug("not shown")
log.info("serving", url="http://here")
try:
    raise ValueError("the cause")
except ValueError:
    log.exception("it broke")
"""


def logged(form: str) -> str:
    """Return what a process with this log format writes to stderr."""
    command = [sys.executable, "-c", LOGS, form]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr


def test_json_is_one_object_per_line() -> None:
    """Each event is a JSON object on one line, with level, time and fields; an error has its
    traceback."""
    first, second = map(json.loads, logged("json").splitlines())

    assert (first["event"], first["level"], first["url"]) == ("serving", "info", "http://here")
    assert first["timestamp"]
    assert "ValueError: the cause" in second["exception"]


@pytest.mark.parametrize("shown", ["serving", "url=http://here", "ValueError: the cause"])
def test_people_read_plain_lines(shown: str) -> None:
    """Without a terminal the text has no colours; debug events are left out."""
    text = logged("human")

    assert shown in text
    assert "\x1b[" not in text
    assert "not shown" not in text


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    """A log on a full disk (full(4)) does not stop the process."""
    command = [sys.executable, "-c", LOGS + "print('went on')", "human"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60)

    assert (ended.stdout, ended.returncode) == (b"went on\n", 0)


def test_lines_of_several_writers_stay_whole() -> None:
    """A line is written together with its end, since gateway processes share the stream and `python
    -u` does not buffer. Each datagram is one write."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        command = [sys.executable, "-u", "-c", LOGS, "json"]
        subprocess.run(command, stderr=theirs, check=True, timeout=60)
        written = [ours.recv(65536), ours.recv(65536)]

    assert [json.loads(one)["event"] for one in written] == ["serving", "it broke"]
    assert all(one.endswith(b"}\n") for one in written)


UNREADABLE = """
import logging
from aiohttp.http_exceptions import BadHttpMessage
from admin.telemetry import logs
logs.set_up("json")
log = logging.getLogger("aiohttp.server")
for error in (BadHttpMessage("Authorization: Bearer a-secret"), ValueError("a defect")):
    try:
        raise error
    except Exception as caught:
        log.error("Error handling request from %s", "127.0.0.1", exc_info=caught)
"""


def test_an_unreadable_request_is_not_quoted() -> None:
    """A request that aiohttp cannot parse is not quoted, since it may contain a key; defects are
    logged in full."""
    command = [sys.executable, "-c", UNREADABLE]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    unreadable, defect = map(json.loads, text.splitlines())

    assert (unreadable["event"], unreadable["level"]) == ("a request is no HTTP", "warning")
    assert unreadable["reason"] == "BadHttpMessage"
    assert "a-secret" not in text
    assert "ValueError: a defect" in defect["exception"]


LIBRARIES = """
import asyncio, logging, sys, threading, warnings
from admin.telemetry import logs
logs.set_up("json")
def deep(n):
    if n: deep(n - 1)
    raise ValueError("x" * 50_000)
def dies():
    raise KeyError("in a thread")
for number in range(50):
    logging.getLogger("asyncio").error("again and again")
try:
    deep(50)
except ValueError:
    logging.getLogger("asyncio").exception("a task")
warnings.warn("old ways")
thread = threading.Thread(target=dies, name="t1")
thread.start()
thread.join()
raise SystemError("the end")
"""


def test_records_of_libraries_and_python_are_json_too() -> None:
    """Records of libraries, warnings, threads and Python itself are JSON; repetitions and long
    tracebacks are cut."""
    command = [sys.executable, "-c", LIBRARIES]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    events = [json.loads(line) for line in text.splitlines()]
    named = [event["event"] for event in events]

    assert named.count("again and again") == 10
    assert {"a task", "a thread died", "the process ends by an error"} < set(named)
    assert any("old ways" in name for name in named)
    assert max(len(line) for line in text.splitlines()) < 20_000


EVENT = AccessEvent(
    request_id="id-1",
    function="digits",
    revision="digits@1",
    replica="r1",
    outcome="ok",
    status=200,
    bytes_in=7,
    bytes_out=9,
    ms=1000.0,
    queue_ms=0.1,
    sends=1,
    is_cold=False,
    level="info",
    timestamp="1970-01-01T00:16:40.000Z",
    decode_us=1000,
    batch_us=2000,
    compute_us=3000,
    encode_us=4000,
    rows=5,
)
COLD = structs.replace(
    EVENT, trace_id="ab" * 16, is_cold=True, phases={"start": 1.235, "load": 2.0}
)
UNANSWERED = dict.fromkeys(("decode_us", "batch_us", "compute_us", "encode_us", "rows"))
LEFT = structs.replace(EVENT, outcome="client_left", status=0, **UNANSWERED)
REFUSED = structs.replace(
    LEFT, outcome="unknown_function", status=404, function="", revision="", replica=""
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Create a pipe, closed after the test."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_line_for_machines(pipe: tuple[int, int]) -> None:
    """A line in JSON has the same field names as the server's log."""
    access_writer("json", pipe[1])([EVENT], 3)
    first, second = os.read(pipe[0], PIPE_PIECE).splitlines()

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
        "decode_us": 1000,
        "batch_us": 2000,
        "compute_us": 3000,
        "encode_us": 4000,
        "rows": 5,
        "is_cold": False,
        "event": "request",
        "level": "info",
        "timestamp": "1970-01-01T00:16:40.000Z",
    }
    assert json.loads(second)["count"] == 3


def test_a_cold_start_and_a_trace_are_told_where_there_are_any(pipe: tuple[int, int]) -> None:
    """A line has the phases of a cold start and the trace id if there are any."""
    access_writer("json", pipe[1])([COLD], 0)
    line = json.loads(os.read(pipe[0], PIPE_PIECE))

    assert (line["is_cold"], line["phases"]) == (True, {"start": 1.235, "load": 2.0})
    assert line["trace_id"] == "ab" * 16


def test_a_request_that_no_replica_answered_has_no_times_of_one(pipe: tuple[int, int]) -> None:
    """A refused request has no fields that only a replica could give."""
    access_writer("json", pipe[1])([REFUSED], 0)
    line = json.loads(os.read(pipe[0], PIPE_PIECE))

    assert (line["outcome"], line["status"], line["is_cold"]) == ("unknown_function", 404, False)
    assert not {"rows", "decode_us", "phases", "trace_id"} & line.keys()


def test_lines_for_people(pipe: tuple[int, int]) -> None:
    """A line for people begins with the outcome."""
    access_writer("human", pipe[1])([COLD, REFUSED, LEFT], 1)
    first, second, third, fourth = os.read(pipe[0], PIPE_PIECE).decode().splitlines()

    assert first == (
        "1970-01-01T00:16:40.000Z [info     ] request                        ok cold"
        " status=200 ms=1000.000 queue_ms=0.100 function=digits revision=digits@1 replica=r1"
        " sends=1 bytes_in=7 bytes_out=9 decode_us=1000 batch_us=2000 compute_us=3000"
        " encode_us=4000 rows=5 start=1.235 load=2.000 request_id=id-1"
        f" trace_id={'ab' * 16}"
    )
    assert " unknown_function status=404 " in second
    assert " function=- revision=- replica=- " in second
    assert " client_left status=- " in third
    assert fourth == "[warning  ] access events left out         count=1"


def test_a_line_for_people_has_what_only_some_requests_have(pipe: tuple[int, int]) -> None:
    """The host of a replica that is not on this machine; method and first byte of an exchange."""
    other = structs.replace(EVENT, host="gpu2")
    exchange = structs.replace(LEFT, method="GET", first_byte_ms=1.5)
    access_writer("human", pipe[1])([other, exchange], 0)
    first, second = os.read(pipe[0], PIPE_PIECE).decode().splitlines()

    assert " replica=r1 host=gpu2 sends=1 " in first
    assert " replica=r1 method=GET sends=1 " in second
    assert " bytes_out=9 first_byte_ms=1.500 request_id=id-1" in second


def test_lines_are_never_torn(pipe: tuple[int, int]) -> None:
    """Each write ends with a whole line and is no larger than a pipe writes atomically."""
    writer = access_writer("human", pipe[1])
    writer([EVENT] * 100, 0)
    lines = b""
    while lines.count(b"\n") < 100:
        lines += os.read(pipe[0], 1_000_000)

    assert set(lines.splitlines()) == {lines.splitlines()[0]}


@pytest.mark.parametrize("form", ["json", "human"])
def test_a_pipe_and_a_file_get_whole_lines(
    form: Literal["json", "human"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe gets as many whole lines at once as it writes atomically; a file gets more, in the
    same order."""
    pieces: list[bytes] = []
    numbered = [structs.replace(EVENT, request_id=f"id-{number}") for number in range(200)]
    monkeypatch.setattr(logs, "_put", lambda _descriptor, piece: pieces.append(piece))
    reading, writing = os.pipe()
    access_writer(form, writing)(numbered, 0)
    to_pipe, pieces = pieces, []
    with (tmp_path / "log").open("wb") as file:
        access_writer(form, file.fileno())(numbered, 0)
    os.close(reading)
    os.close(writing)

    assert b"".join(to_pipe) == b"".join(pieces)
    assert all(piece.endswith(b"\n") for piece in (*to_pipe, *pieces))
    assert max(map(len, to_pipe)) <= PIPE_PIECE < max(map(len, pieces))
    assert re.findall(rb"id-(\d+)", b"".join(pieces)) == [b"%d" % one for one in range(200)]


def test_a_pipe_of_one_process_takes_more_while_it_is_empty(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unshared pipe gets as many lines as it has room for; with data unread, as many as it
    writes atomically."""
    pieces: list[bytes] = []
    write = access_writer("json", pipe[1], is_shared=False)
    monkeypatch.setattr(logs, "_put", lambda _descriptor, piece: pieces.append(piece))
    write([EVENT] * AT_ONCE, 0)
    (whole,), pieces = pieces, []
    os.write(pipe[1], b"x")
    write([EVENT] * AT_ONCE, 0)

    assert whole == b"".join(pieces)
    assert len(whole) > PIPE_PIECE >= max(map(len, pieces))


def test_a_line_longer_than_a_piece_is_written_whole(pipe: tuple[int, int]) -> None:
    """A line longer than an atomic write is written whole, and so is the next one."""
    long = structs.replace(EVENT, request_id="x" * PIPE_PIECE)
    access_writer("json", pipe[1])([EVENT, long, EVENT], 0)
    lines = os.read(pipe[0], 4 * PIPE_PIECE).splitlines()

    assert [len(json.loads(line)["request_id"]) for line in lines] == [4, PIPE_PIECE, 4]


def test_a_reader_that_is_gone_is_no_error() -> None:
    """A closed reader, or a missing stderr, is no error."""
    reading, writing = os.pipe()
    os.close(reading)
    access_writer("json", writing)([EVENT], 0)
    os.close(writing)
    access_writer("json", -1, is_shared=False)([EVENT], 0)
