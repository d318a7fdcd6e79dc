"""The server's own log, in a process of its own: setting it up changes the whole process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
    """What a process with that form of log writes to standard error."""
    command = [sys.executable, "-c", LOGS, form]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr


def test_json_is_one_object_per_line() -> None:
    """Each event is a JSON object with level, time and fields, an error with its traceback."""
    first, second = map(json.loads, logged("json").splitlines())

    assert (first["event"], first["level"], first["url"]) == ("serving", "info", "http://here")
    assert first["timestamp"]
    assert "ValueError: the cause" in second["exception"]


@pytest.mark.parametrize("shown", ["serving", "url=http://here", "ValueError: the cause"])
def test_people_read_plain_lines(shown: str) -> None:
    """Without a terminal there are no colours; debug events are left out."""
    text = logged("human")

    assert shown in text
    assert "\x1b[" not in text
    assert "not shown" not in text


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    """Its disk is full (full(4)): whoever tells of something goes on with its work."""
    command = [sys.executable, "-c", LOGS + "print('went on')", "human"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60)

    assert (ended.stdout, ended.returncode) == (b"went on\n", 0)


def test_lines_of_several_writers_stay_whole() -> None:
    """Gateway processes share the stream, and `python -u` keeps nothing back: a line is written
    with its end. A datagram is what was written at once."""
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


def test_what_aiohttp_cannot_read_is_not_quoted() -> None:
    """It may hold a key. Defects are shown as they are."""
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


def test_what_libraries_and_python_write_is_json_too() -> None:
    """Whoever repeats itself is cut short, and so is a long traceback."""
    command = [sys.executable, "-c", LIBRARIES]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    events = [json.loads(line) for line in text.splitlines()]
    named = [event["event"] for event in events]

    assert named.count("again and again") == 10
    assert {"a task", "a thread died", "the process ends by an error"} < set(named)
    assert any("old ways" in name for name in named)
    assert max(len(line) for line in text.splitlines()) < 20_000
