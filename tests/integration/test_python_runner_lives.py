"""The process of a Python function: start, time limits, threads, batches, end; other Pythons."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from python_runner.handlers import PAGE_MAX
from tests.support.function_runner import JSON, READY, FunctionRunner, Reply, until

ASKED = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


def test_ready_is_held_until_the_handler_is_loaded(tmp_path: Path) -> None:
    """A probe that came before waits, as does a call."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f"""
def load(ctx):
    open({str(gate)!r}).read()
def predict(): return "here"
"""
    with FunctionRunner(tmp_path, text) as runner, runner.connect() as probe:
        probe.sendall(f"GET {READY} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        with gate.open("w"):  # opens when `load` does
            probe.setblocking(False)
            with pytest.raises(BlockingIOError):
                probe.recv(1)
            probe.setblocking(True)
        assert until(probe, b"ready").startswith(b"HTTP/1.1 200 OK")
        assert runner.call().body == b"here"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such", "importing handler.py raised ModuleNotFoundError: No module named"),
        ("import no_such", "; requirements.txt or pyproject.toml beside it names the packages"),
        ("def predict(:", "importing handler.py raised SyntaxError: invalid syntax (handler.py:1)"),
        ("raise SystemExit(0)", "importing handler.py raised SystemExit: 0 (handler.py:1)"),
        ("x = 1", "handler.py must define predict"),
        ("predict = 3", "handler.py must define predict"),
        ("def predict(x: 'Missing'): ...", "predict: its hints cannot be read: NameError"),
        ("load = 3\ndef predict(): ...", "load: expected a function, got int"),
        (
            "def load(ctx):\n  return {}['c']\ndef predict(): ...",
            "handler.py load(ctx) raised KeyError: 'c' (handler.py:2 in load)",
        ),
        (
            "async def load(ctx):\n  return {}['c']\ndef predict(): ...",
            "handler.py load(ctx) raised KeyError: 'c' (handler.py:2 in load)",
        ),
    ],
)
def test_what_cannot_be_loaded_ends_the_process(tmp_path: Path, text: str, said: str) -> None:
    """With the traceback, which has no line of ours, and the exit code."""
    with FunctionRunner(tmp_path, text) as runner:
        assert runner.end() == 1
        assert said in runner.log
        assert runner.log.endswith("the process ends with code 1\n")
        assert "python_runner" not in runner.log


def test_a_page_is_read_once_and_answers_get(tmp_path: Path) -> None:
    """It is the answer to GET at /, POST is a call, and other methods are told all that may be."""
    (tmp_path / "page.html").write_text("<!doctype html><title>é</title>")
    with FunctionRunner(tmp_path, "def predict(): return {}", settings={"page": "page.html"}) as it:
        reply = it.call(method="GET")
        assert reply.fields["content-type"] == "text/html; charset=utf-8"
        assert reply.body.decode() == "<!doctype html><title>é</title>"
        head = it.call(method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert it.call().outputs == {}
        refused = it.call(method="PUT")
        assert (refused.status, refused.fields["allow"]) == (405, "GET, HEAD, POST")
        assert refused.detail == "expected GET or HEAD or POST, got PUT"


@pytest.mark.parametrize(
    ("size", "said"), [(None, "page.html: No such file"), (PAGE_MAX + 1, "page.html: expected at")]
)
def test_a_page_that_cannot_be_read_ends_the_process(
    tmp_path: Path, size: int | None, said: str
) -> None:
    """As a handler that cannot be loaded does."""
    if size is not None:
        with (tmp_path / "page.html").open("wb") as file:
            file.truncate(size)
    with FunctionRunner(tmp_path, "def predict(): ...", settings={"page": "page.html"}) as runner:
        assert runner.end() == 1
        assert said in runner.log


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": "nowhere"}, "listen: expected a path or 127.0.0.1:PORT, got 'nowhere'"),
        ({"listen": "0.0.0.0:80"}, "listen: expected a path or 127.0.0.1:PORT"),
        ({"timeout_s": 0}, "Expected `float` > 0.0 - at `$.timeout_s`"),
        ({"batch_max": "4"}, "Expected `int`, got `str` - at `$.batch_max`"),
        ({"what": 1}, "Object contains unknown field `what`"),
        ({"listen": "/no/such/folder/socket"}, "/no/such/folder/socket: No such file"),
    ],
)
def test_settings_that_cannot_be_used_end_the_process(
    tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    """With the key, what was expected and what came."""
    with FunctionRunner(tmp_path, "", settings=settings) as runner:
        assert runner.end() == 2
        assert said in runner.log


def test_functions_run_in_the_main_thread(tmp_path: Path) -> None:
    """`load`, `predict` and every step of a generator; an `async def` does not."""
    text = """
import threading
def load(ctx): return threading.current_thread() is threading.main_thread()
def predict(inputs, ctx):
    yield str(ctx.state)
    yield str(threading.current_thread() is threading.main_thread())
"""
    with FunctionRunner(tmp_path / "a", text) as runner:
        assert runner.call(accept="text/plain").body == b"TrueTrue"
    text = text.replace("def predict", "async def predict")
    with FunctionRunner(tmp_path / "b", text) as runner:
        assert runner.call(accept="text/plain").body == b"TrueFalse"


def test_more_threads_run_at_once(tmp_path: Path) -> None:
    """As many calls as `concurrency` says; a generator stays in its thread."""
    text = """
import threading
together = threading.Barrier(3)
def predict():
    begun = threading.get_ident()
    together.wait(60)
    yield str(begun)
    yield str(threading.get_ident())
"""
    with FunctionRunner(tmp_path, text, settings={"concurrency": 3}) as runner:
        replies = together(runner, 3)

    pairs = [reply.events for reply in replies]
    assert all(first == second for first, second in pairs)
    assert len({first for first, _ in pairs}) == 3


def together(runner: FunctionRunner, count: int, body: str = "{}") -> list[Reply]:
    """Return the replies of calls at the same time; "N" in the body is the number of each."""
    found: dict[int, Reply] = {}

    def call(at: int) -> None:
        found[at] = runner.call(f'{{"inputs":{body.replace("N", str(at))}}}', JSON)

    threads = [threading.Thread(target=call, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[at] for at in range(count)]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_calls_that_wait_become_a_batch(tmp_path: Path, kind: str) -> None:
    """The first call is alone; those that came meanwhile come as lists, each gets its own."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f"""
import asyncio
{kind} predict(n: list[int], k: list[int] = 7):
    if n == [-1]:
        print("alone")
        {"await asyncio.to_thread(" if kind != "def" else "("}lambda: open({str(gate)!r}).read())
        {"" if kind != "def" else "open(" + repr(str(gate)) + ").read()"}
    if 3 in n:
        raise ValueError(n)
    return [(one, two, len(n)) for one, two in zip(n, k)]
"""
    settings = {"batch_max": 4, "concurrency": 1}
    with FunctionRunner(tmp_path, text, settings=settings) as runner, runner.connect() as first:
        body = b'{"inputs":{"n":-1}}'
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        request = head + b"Content-Length: %d\r\n\r\n"
        first.sendall(request % len(body) + body)
        assert runner.line() == "alone"
        ends = [runner.connect() for _ in range(6)]
        for at, end in enumerate(ends):
            body = b'{"inputs":{"n":%d}}' % (at + 4)
            end.sendall(request % len(body) + body)
            # Its answer to a part of the next request says that it has read this one.
            end.sendall(b"")
        runner.call(path=READY, method="GET")
        with gate.open("w"):
            pass
        assert b"[-1,7,1]" in until(first, b"]}")
        sizes = [json.loads(until(end, b"]}}").partition(b"\r\n\r\n")[2]) for end in ends]
        for end in ends:
            end.close()
        answers = [one["outputs"]["output"] for one in sizes]
        assert [answer[:2] for answer in answers] == [[at + 4, 7] for at in range(6)]
        assert sorted(answer[2] for answer in answers) == [2, 2, 4, 4, 4, 4]
        assert runner.infer(n=3).detail == "ValueError: [3] (handler.py:9 in predict)"


def test_a_batch_must_give_a_list_of_its_length(tmp_path: Path) -> None:
    """Each caller is told; so is a generator at load."""
    text = "def predict(inputs): return inputs[0]"
    with FunctionRunner(tmp_path / "a", text, settings={"batch_max": 2}) as runner:
        detail = "predict: expected a list of 1 results, one per call, got no list"
        assert runner.infer(a=1).detail == detail
    text = "def predict(inputs): yield 1"
    with FunctionRunner(tmp_path / "b", text, settings={"batch_max": 2}) as runner:
        assert runner.end() == 1
        assert "predict is a generator: expected a function, in batches" in runner.log


def test_an_async_function_that_is_late_is_cancelled(tmp_path: Path) -> None:
    """504, and the process goes on."""
    text = """
import asyncio
async def predict(late: bool = True):
    try:
        await asyncio.Event().wait() if late else None
    finally:
        print("cancelled")
"""
    with FunctionRunner(tmp_path, text, settings={"timeout_s": 0.2}) as runner:
        reply = runner.call()
        assert (reply.status, reply.json()["code"]) == (504, "execution_timeout")
        assert runner.line() == "cancelled"
        assert runner.infer(late=False).status == 200


def test_a_client_that_leaves_cancels_an_async_function(tmp_path: Path) -> None:
    """At once; a call that waits for a thread is forgotten."""
    text = """
import asyncio
async def predict():
    print("begun")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cancelled")
"""
    with FunctionRunner(tmp_path, text) as runner:
        with runner.connect() as end:
            end.sendall(ASKED)
            assert runner.line() == "begun"
        assert runner.line() == "cancelled"


def test_a_function_that_hangs_ends_the_process(tmp_path: Path) -> None:
    """504 for its caller, its place in the log, an exit code of its own."""
    text = """
import threading
def predict(): deeper()
def deeper():
    threading.Event().wait()
"""
    with FunctionRunner(tmp_path, text, settings={"timeout_s": 0.2}) as runner:
        reply = runner.call()
        assert (reply.status, reply.json()["code"]) == (504, "execution_timeout")
        # A call that it took now would be lost with it.
        assert reply.fields["connection"] == "close"
        assert runner.end() == 124
        assert 'File "handler.py", line 5, in deeper' in runner.log
        assert "python_runner" not in runner.log


@pytest.mark.slow
def test_a_loop_that_stands_still_ends_the_process(tmp_path: Path) -> None:
    """What blocks in an `async def`, or holds the GIL, cannot be told to anybody: only the log."""
    text = "import threading\nasync def predict(): threading.Event().wait()"
    with FunctionRunner(tmp_path, text, settings={"timeout_s": 0.2}) as runner:
        with runner.connect() as end:
            end.sendall(ASKED)
            assert runner.end() == 1
        assert 'handler.py", line 2 in predict' in runner.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_calls_end(tmp_path: Path, number: signal.Signals) -> None:
    """Idle connections end at once, and new ones are refused; then the process ends with 0."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f"""
def predict():
    print("begun")
    open({str(gate)!r}).read()
    return "done"
"""
    with FunctionRunner(tmp_path, text) as runner:
        with runner.connect() as idle, runner.connect() as end:
            idle.sendall(f"GET {READY} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            until(idle, b"ready")
            end.sendall(ASKED)
            assert runner.line() == "begun"
            runner.process.send_signal(number)
            assert idle.recv(1) == b""
            with pytest.raises(OSError), socket.socket(socket.AF_UNIX) as late:  # noqa: PT011, PT012
                late.connect(str(runner.socket))
                late.sendall(ASKED)
                assert late.recv(1) == b""
                raise ConnectionRefusedError
            with gate.open("w"):
                pass
            answer = until(end, b"done")
            assert b"connection: close" in answer
        assert runner.end() == 0


def test_children_of_a_handler_find_its_modules(tmp_path: Path) -> None:
    """A pool of processes can be used in `predict`."""
    text = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
def double(value): return 2 * value
def predict(value: int):
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return {"value": pool.submit(double, value).result()}
"""
    with FunctionRunner(tmp_path, text) as runner:
        assert runner.infer(value=4).outputs == {"value": 8}


PYTHONS = sorted(
    [
        *Path(os.environ.get("PYENV_ROOT", "~/.pyenv"))
        .expanduser()
        .glob("versions/3.1[1-9].*/bin/python"),
        *(Path(one) for one in os.environ.get("FN_TEST_PYTHONS", "").split(os.pathsep) if one),
    ]
)
"""Other interpreters: those of pyenv, and FN_TEST_PYTHONS, with NumPy or without."""
OTHER = """
import sys
try:
    import numpy as np
except ImportError:
    np = None
def predict(values: list[float], raw: bytes = b"", *, ctx):
    if np is not None:
        return {"sum": np.array(values).sum(), "raw": raw}
    return {"sum": sum(values), "raw": raw}
"""


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_other_pythons_serve_alike(tmp_path: Path, python: Path) -> None:
    """3.11 and newer, with NumPy 1.26, 2.x or none."""
    if subprocess.run(
        [python, "-c", "import msgspec"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{python} has no msgspec")
    with FunctionRunner(tmp_path, OTHER, python=str(python)) as runner:
        assert runner.infer(values=[1, 2.5]).outputs == {"sum": 3.5, "raw": ""}
        reply = runner.send_form(("values", "1", None), ("values", "2", None), ("raw", "ab", None))
        assert reply.outputs == {"sum": 3.0, "raw": "YWI="}
        assert runner.infer(values=["x"]).detail == "values[0]: expected float, got str"
        assert runner.call(path=READY, method="GET").status == 200
        assert runner.call(path="/.fngate/description", method="GET").status == 200


def test_calls_are_told_if_that_is_wanted(tmp_path: Path) -> None:
    """Method, path, status and time, in a line of stderr."""
    text = "def predict(a: int): return {'a': 1 // a}"
    with FunctionRunner(tmp_path, text, settings={"log_calls": True}) as runner:
        runner.infer(a=1)
        runner.infer(a=0)
        runner.call(path="/what", method="GET")
        runner.call(path=READY, method="GET")
    told = [re.sub(r"[0-9.]+ ms", "T ms", line) for line in runner.log.splitlines()]

    assert [line for line in told if " T ms" in line] == [
        "POST / 200 T ms",
        "POST / 500 T ms",
        "GET /what 404 T ms",
    ]
