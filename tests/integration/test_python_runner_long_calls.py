"""The server of Python functions while a `def` runs for long: another thread has the event loop."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.function_runner import DESCRIPTION, JSON, READY, FunctionRunner, until

GATED = """
def predict(n: int, text: str = ""):
    print("begun", n)
    if n == 0:
        open({gate!r}).read()
    return {{"n": n, "size": len(text)}}
"""


def asked(**inputs: object) -> bytes:
    """Return a request as it is sent."""
    body = json.dumps({"inputs": inputs}).encode()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@contextmanager
def gated(folder: Path) -> Iterator[tuple[FunctionRunner, Path]]:
    """Yield a server whose call with n = 0 lasts until the gate is opened for writing."""
    gate = folder / "gate"
    os.mkfifo(gate)
    with FunctionRunner(folder, GATED.format(gate=str(gate))) as runner:
        yield runner, gate


def test_probes_are_answered_while_a_call_computes(tmp_path: Path) -> None:
    """So are the description and what is refused before it waits; the call goes on."""
    with gated(tmp_path) as (runner, gate), runner.connect() as end:
        end.sendall(asked(n=0))
        assert runner.line() == "begun 0"
        for _ in range(3):
            assert runner.call(path=READY, method="GET").body == b"ready\n"
        assert runner.call(path=DESCRIPTION, method="GET").status == 200
        assert runner.infer(n="x").detail == "n: expected int, got str"
        gate.write_text("")
        assert b'{"n":0,"size":0}' in until(end, b"}}")
        assert runner.infer(n=1).outputs == {"n": 1, "size": 0}


def test_a_body_arrives_while_a_call_computes(tmp_path: Path) -> None:
    """Larger than any buffer between client and server, so somebody reads it meanwhile."""
    with gated(tmp_path) as (runner, gate), runner.connect() as first, runner.connect() as second:
        first.sendall(asked(n=0))
        assert runner.line() == "begun 0"
        second.sendall(asked(n=1, text="x" * 8_000_000))
        gate.write_text("")
        assert b'{"n":0,"size":0}' in until(first, b"}}")
        assert b'{"n":1,"size":8000000}' in until(second, b"}}")


def test_a_client_that_leaves_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    """Its call never begins, the one behind it does."""
    with gated(tmp_path) as (runner, gate), runner.connect() as first, runner.connect() as last:
        first.sendall(asked(n=0))
        assert runner.line() == "begun 0"
        with runner.connect() as gone:
            gone.sendall(asked(n=1))
            runner.call(path=READY, method="GET")
        last.sendall(asked(n=2))
        runner.call(path=READY, method="GET")
        gate.write_text("")
        until(last, b"}}")
        assert runner.line() == "begun 2"


def test_a_client_may_leave_while_its_call_computes(tmp_path: Path) -> None:
    """Its result is dropped, and the next one is answered."""
    with gated(tmp_path) as (runner, gate):
        with runner.connect() as end:
            end.sendall(asked(n=0))
            assert runner.line() == "begun 0"
        runner.call(path=READY, method="GET")
        gate.write_text("")
        assert runner.infer(n=1).outputs == {"n": 1, "size": 0}


def test_who_waits_behind_a_call_that_hangs_is_cut_off(tmp_path: Path) -> None:
    """Its caller gets 504, the one behind it the end of the connection, as the process ends."""
    text = "import threading\ndef predict():\n  print('begun')\n  threading.Event().wait()"
    with FunctionRunner(tmp_path, text, settings={"timeout_s": 0.2}) as runner:
        with runner.connect() as first, runner.connect() as second:
            first.sendall(asked())
            assert runner.line() == "begun"
            second.sendall(asked())
            assert until(first, b"}").startswith(b"HTTP/1.1 504 ")
            assert second.recv(1) == b""
        assert runner.end() == 124


def test_a_long_call_that_ends_in_time_does_not_end_the_process(tmp_path: Path) -> None:
    """Its time ends with it: the timer of an earlier call is no later one's."""
    text = "import time\ndef predict(s: float): time.sleep(s)"
    with FunctionRunner(tmp_path, text, settings={"timeout_s": 0.6}) as runner:
        for _ in range(4):
            assert runner.infer(s=0.25).status == 200
            assert runner.infer(s=0).status == 200
        assert runner.infer(s=10).status == 504
        assert runner.end() == 124


GENERATOR = """
import threading, time
def main(): return threading.current_thread() is threading.main_thread()
def predict(slow: str = "", n: int = 3):
    try:
        for at in range(n):
            if slow == str(at):
                print("slow")
                time.sleep(0.05)
            yield f"{at} {main()}"
    finally:
        print("over", main())
"""


@pytest.mark.parametrize("slow", ["", "0", "1"])
def test_a_generator_stays_in_the_main_thread(tmp_path: Path, slow: str) -> None:
    """Also if its first value, or a later one, takes long."""
    with FunctionRunner(tmp_path, GENERATOR) as runner:
        assert runner.infer(slow=slow).events == ["0 True", "1 True", "2 True"]
        if slow:
            assert runner.line() == "slow"
        assert runner.line() == "over True"


@pytest.mark.parametrize("slow", ["0", "1"])
def test_a_client_that_leaves_during_a_value_ends_the_generator(tmp_path: Path, slow: str) -> None:
    """In the thread that runs it, and what follows is answered."""
    with FunctionRunner(tmp_path, GENERATOR) as runner:
        with runner.connect() as end:
            end.sendall(asked(slow=slow, n=10**9))
            assert runner.line() == "slow"
        assert runner.line() == "over True"
        assert runner.infer(n=1).events == ["0 True"]


def test_long_and_short_calls_alternate(tmp_path: Path) -> None:
    """The loop changes threads many times, and everybody gets their own answer."""
    text = """
import time
def predict(n: int):
    time.sleep((0, 0, 0.0005, 0.004, 0.006, 0.011)[n % 6])
    return {"n": n}
"""
    failed: list[object] = []

    def call(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(40):
            n = numbers.randrange(10**6)
            if (outputs := runner.infer(n=n).outputs) != {"n": n}:
                failed.append(outputs)

    with FunctionRunner(tmp_path, text) as runner:
        threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert runner.call(path=READY, method="GET").status == 200


def test_a_function_may_have_an_event_loop_of_its_own(tmp_path: Path) -> None:
    """`asyncio.run` works in a `def`, for a short time and a long one."""
    text = """
import asyncio
async def wait(s):
    async with asyncio.timeout(30):
        await asyncio.sleep(s)
    return asyncio.current_task() is not None
def predict(s: float): return {"ok": asyncio.run(wait(s))}
"""
    with FunctionRunner(tmp_path, text) as runner:
        for s in (0, 0.03, 0):
            assert runner.infer(s=s).outputs == {"ok": True}


def test_a_function_may_wait_for_the_loop_of_its_async_load(tmp_path: Path) -> None:
    """The loop then has a thread of its own."""
    text = """
import asyncio
async def load(ctx): return asyncio.get_running_loop()
async def double(n): return 2 * n
def predict(n: int, *, ctx):
    return {"n": asyncio.run_coroutine_threadsafe(double(n), ctx.state).result(30)}
"""
    with FunctionRunner(tmp_path, text) as runner:
        assert [runner.infer(n=n).outputs["n"] for n in range(3)] == [0, 2, 4]


def test_what_a_def_returns_may_be_awaited(tmp_path: Path) -> None:
    """A coroutine runs in the loop, and may be late there."""
    text = """
import asyncio
async def wait(s):
    async with asyncio.timeout(60):
        await asyncio.sleep(s)
    return {"s": s}
def predict(s: float): return wait(s)
"""
    with FunctionRunner(tmp_path, text, settings={"timeout_s": 0.5}) as runner:
        assert runner.infer(s=0.01).outputs == {"s": 0.01}
        assert runner.infer(s=30).status == 504
        assert runner.infer(s=0).outputs == {"s": 0.0}


def test_the_trace_of_a_call_is_its_own(tmp_path: Path) -> None:
    """Also that of the one after it, which has none."""
    text = "def predict(ctx):\n  yield ctx.traceparent\n  yield ctx.traceparent"
    with FunctionRunner(tmp_path, text) as runner:
        for given in ("00-a", "", "00-b"):
            fields = {"traceparent": given} if given else {}
            assert runner.call("{}", JSON, fields=fields).status == 400
            assert runner.call(fields=fields).events == [given, given]
