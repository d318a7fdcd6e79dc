"""Streams of the server of Python functions: forms, readers that stop or leave, failures."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.function_runner import FunctionRunner, rest_of, until

BODY = """
        for at in range(n):
            if at == fail:
                raise RuntimeError("mid")
            if report:
                print(at)
            yield {"i": at} if mode == "dict" else f"t{at}\\n" if mode == "text" else b"x" * size
    finally:
        print("over")
"""
PARAMETERS = (
    'predict(n: int = 3, mode: str = "dict", fail: int = -1, size: int = 2, report: bool = False)'
)
HANDLERS = {
    "generator": f"def {PARAMETERS}:\n    try:{BODY}",
    "async generator": f"async def {PARAMETERS}:\n    try:{BODY}",
}
Runners = Callable[[str], FunctionRunner]
both = pytest.mark.parametrize("name", HANDLERS)


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runners]:
    """Servers by handler."""
    folder = tmp_path_factory.mktemp("runners")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(FunctionRunner(folder / name.replace(" ", "-"), text))
            for name, text in HANDLERS.items()
        }.__getitem__


def asked(**inputs: object) -> bytes:
    """Return a request as it is sent."""
    body = json.dumps({"inputs": inputs}).encode()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@both
@pytest.mark.parametrize(
    ("mode", "accept", "content_type", "body"),
    [
        ("dict", "", "text/event-stream", b'data: {"i":0}\n\ndata: {"i":1}\n\n'),
        ("text", "", "text/event-stream", b"data: t0\ndata: \n\ndata: t1\ndata: \n\n"),
        ("dict", "application/x-ndjson", "application/x-ndjson", b'{"i":0}\n{"i":1}\n'),
        ("text", "application/x-ndjson", "application/x-ndjson", b'"t0\\n"\n"t1\\n"\n'),
        ("text", "text/plain", "text/plain; charset=utf-8", b"t0\nt1\n"),
        ("bytes", "", "application/octet-stream", b"xxxx"),
        ("bytes", "application/*", "application/octet-stream", b"xxxx"),
        (
            "dict",
            "application/json, text/plain, */*",
            "text/event-stream",
            b'data: {"i":0}\n\ndata: {"i":1}\n\n',
        ),
    ],
)
def test_values_come_in_the_form_that_is_accepted(
    runners: Runners, name: str, mode: str, accept: str, content_type: str, body: bytes
) -> None:
    """Events unless lines or text are asked for; bytes are themselves."""
    runner = runners(name)
    reply = runner.infer(accept, n=2, mode=mode)

    assert (reply.status, reply.fields["content-type"], reply.body) == (200, content_type, body)
    assert runner.line() == "over"


@both
def test_no_form_that_is_accepted_is_an_error(runners: Runners, name: str) -> None:
    """Before the first byte."""
    reply = runners(name).infer("application/json")

    assert (reply.status, reply.json()["code"]) == (406, "not_acceptable")
    assert runners(name).line() == "over"


@both
def test_a_failure_before_the_first_value_is_an_answer(runners: Runners, name: str) -> None:
    """With status and traceback."""
    reply = runners(name).infer(fail=0)

    assert (reply.status, reply.json()["code"]) == (500, "function_failed")
    assert "RuntimeError: mid" in reply.traceback
    assert runners(name).line() == "over"


@both
def test_a_failure_in_the_middle_is_an_event(runners: Runners, name: str) -> None:
    """Events end with the problem; bytes, lines and texts are cut."""
    runner = runners(name)
    first, last = runner.infer(fail=1).events
    assert first == '{"i":0}'
    assert last.startswith("error ")
    assert json.loads(last.removeprefix("error "))["code"] == "function_failed"
    for mode, accept in (("bytes", ""), ("dict", "application/x-ndjson"), ("text", "text/plain")):
        reply = runner.infer(accept, fail=1, mode=mode)
        assert reply.is_cut
        assert reply.body
    assert [runner.line() for _ in range(4)] == ["over"] * 4


@both
def test_a_client_that_leaves_ends_the_generator(runners: Runners, name: str) -> None:
    """Its `finally` runs, in the middle of an endless stream."""
    runner = runners(name)
    with runner.connect() as end:
        end.sendall(asked(n=10**9, mode="bytes"))
        until(end, b"xx")

    assert runner.line() == "over"


@both
def test_an_empty_stream_is_one(runners: Runners, name: str) -> None:
    """No value, no event."""
    reply = runners(name).infer(n=0)

    assert (reply.status, reply.body) == (200, b"")
    assert runners(name).line() == "over"


@both
def test_fifty_streams_are_open_at_once(runners: Runners, name: str) -> None:
    """Each gets all of its values, though the first one is never read to its end before."""
    runner = runners(name)
    with ExitStack() as stack:
        ends = [stack.enter_context(runner.connect()) for _ in range(50)]
        for at, end in enumerate(ends):
            end.sendall(asked(n=2000, mode="bytes", size=100 + at))
        for end in ends:
            until(end, b"200 OK")
        for end in ends:
            end.shutdown(socket.SHUT_RD)
        del ends
    assert [runner.line() for _ in range(50)] == ["over"] * 50
    replies = [runner.infer(n=2000, mode="bytes") for _ in range(3)]
    assert all(len(reply.body) == 4000 for reply in replies)
    assert [runner.line() for _ in range(3)] == ["over"] * 3


def memory_kib(pid: int) -> int:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@both
def test_readers_that_stop_stop_the_generator(runners: Runners, name: str) -> None:
    """Of 50 streams of 400 MiB each, at most a value is in memory; one that goes on gets more."""
    runner = runners(name)
    before = memory_kib(runner.process.pid)
    with ExitStack() as stack:
        ends = [stack.enter_context(runner.connect()) for _ in range(50)]
        for end in ends:
            end.sendall(asked(n=400, mode="bytes", size=2**20))
        for end in ends:
            until(end, b"xxxx")
        extra = stack.enter_context(runner.connect())
        extra.sendall(asked(n=20, mode="bytes", size=2**20).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert len(rest_of(extra)) > 20 * 2**20
        assert runner.line() == "over"
        grown = memory_kib(runner.process.pid) - before

    assert grown < 50 * 1.5 * 1024 + 20 * 1024
    assert [runner.line() for _ in range(50)] == ["over"] * 50


def test_a_thread_keeps_no_value_of_a_reader_that_stopped(tmp_path: Path) -> None:
    """Of a value that is being written only its bytes are left."""
    handler = """
LEFT = [0]

class Value(bytes):
    def __del__(self):
        LEFT[0] -= 1

def predict(n: int = 0):
    return stream(n) if n else {"left": LEFT[0]}

def stream(n):
    for at in range(n):
        LEFT[0] += 1
        yield Value(2**22)
"""
    with FunctionRunner(tmp_path, handler, settings={"concurrency": 2}) as runner:
        with runner.connect() as end:
            end.sendall(asked(n=9))
            until(end, b"\0\0\0")
            for _ in range(100):
                left = runner.infer().outputs["left"]
                if not left:
                    break
        assert left == 0


def test_a_stream_waits_for_no_other_while_a_thread_is_free(tmp_path: Path) -> None:
    """One that waits for its reader, and one that computes until that one is over."""
    handler = """
import threading

OVER = threading.Event()

def predict(is_first: bool):
    if is_first:
        for _ in range(3):
            yield b"x" * 2**20
        OVER.set()
    else:
        yield "here"
        assert OVER.wait(20)
        yield "met"
"""
    with (
        FunctionRunner(tmp_path, handler, settings={"concurrency": 2}) as runner,
        runner.connect() as first,
        runner.connect() as second,
    ):
        first.sendall(asked(is_first=True))
        until(first, b"xx")
        second.sendall(asked(is_first=False))
        until(second, b"here")
        until(first, b"\r\n0\r\n\r\n")
        assert b"data: met" in until(second, b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_generators_clean_up_before_the_process_ends(tmp_path: Path, kind: str) -> None:
    """Also those whose clients left at the signal, as they do when a replica stops."""
    wait = "time.sleep(0.2)" if kind == "def" else "await asyncio.sleep(0.2)"
    handler = f"""
import asyncio, time

{kind} predict():
    try:
        while True:
            yield "here"
            {wait}
    finally:
        {wait}
        print("over")
"""
    with FunctionRunner(tmp_path, handler, settings={"concurrency": 3}) as runner:
        with ExitStack() as stack:
            ends = [stack.enter_context(runner.connect()) for _ in range(3)]
            for end in ends:
                end.sendall(asked())
                until(end, b"here")
            runner.process.terminate()
        assert runner.end() == 0
        assert [runner.line() for _ in range(4)] == ["over"] * 3 + [""]
