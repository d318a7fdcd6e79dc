"""Tests of the check before a cold function: in the loop, in the process, in line for it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.body_memory import BODY_MIN, BodyMemories
from gateway.cold_checks.check_line import WAITING_MAX
from gateway.cold_checks.check_process import CheckProcess, Content, Question, Unchecked, check
from gateway.cold_checks.cold_check import IN_LOOP_MAX, ColdCheck
from registry.errors import FnError, QueueFull, WaitBudgetOver
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.meta import RequestMeta
from tests.support import nouns

JSON = RequestMeta("application/json", "", -1, "")
GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


def rows(count: int, width: int = 4) -> bytes:
    """Return a JSON body with `count` rows."""
    return json.dumps({"inputs": {"x": [[0.5] * width] * count}}).encode()


LARGE = rows(IN_LOOP_MAX // 10)


class HeldProcess(CheckProcess):
    """A process whose checks wait for `gate`; `checked` are the first bytes of the bodies."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.checked: list[bytes] = []
        self.aborted = 0
        self._error = error

    def check(self, question: Question, content: Content) -> None:
        """Note a body once the gate is open."""
        self.gate.wait()
        self.checked.append(bytes(content.body[:2]))
        if self._error is not None:
            raise self._error

    def abort(self) -> None:
        """Note that the check that runs is given up."""
        self.aborted += 1

    def close(self) -> None:
        """Let all checks pass."""
        self.gate.set()


@pytest.fixture
def checker() -> Iterator[ColdCheck]:
    """Cold check with a real process, closed after the test."""
    checker = ColdCheck()
    yield checker
    checker.close()


@pytest.fixture
def held() -> Iterator[tuple[ColdCheck, HeldProcess]]:
    """Cold check whose process waits, closed after the test."""
    process = HeldProcess()
    checker = ColdCheck(process)
    yield checker, process
    checker.close()


async def checked(
    checker: ColdCheck, body: bytes, meta: RequestMeta = JSON, caller: str = "", **fields: Any
) -> None:
    """Wait for a check, wherever it runs, and raise the error that it found."""
    found: asyncio.Queue[BaseException | None] = asyncio.Queue(1)
    revision = nouns.revision(**fields)
    future = checker.check(meta, Content(body), revision, caller, found.put_nowait)
    if future is None:
        return
    try:
        error = await found.get()
    except asyncio.CancelledError:
        future.cancel()
        raise
    if error is not None:
        raise error


async def refusal(checker: ColdCheck, body: bytes, meta: RequestMeta = JSON, **fields: Any) -> str:
    """Return the message of the body's refusal, "" if it is accepted."""
    try:
        await checked(checker, body, meta, **fields)
    except (RequestError, FnError) as error:
        return error.message
    return ""


def started(checker: ColdCheck, *bodies: bytes) -> list[asyncio.Task[None]]:
    """Begin checks of large bodies; the first letter of each is its caller."""
    return [
        asyncio.create_task(checked(checker, body + LARGE, caller=chr(body[0]))) for body in bodies
    ]


async def test_good_input_passes_in_every_form(checker: ColdCheck) -> None:
    """The check accepts JSON and binary bodies that a replica accepts, small and large."""
    binary = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{'
    binary += b'"binary_data_size":16}}]}'
    with_length = RequestMeta("application/octet-stream", "", len(binary), "")

    assert await refusal(checker, GOOD) == ""
    assert await refusal(checker, LARGE) == ""
    assert await refusal(checker, binary + b"\0" * 16, with_length) == ""


async def test_bad_input_is_refused_small_or_large(checker: ColdCheck) -> None:
    """The message names input, expected and got, whether the check ran in the loop or in the
    process."""
    small, large = rows(1, width=3), rows(IN_LOOP_MAX // 10, width=3)

    assert len(small) <= IN_LOOP_MAX < len(large)
    for body in (small, large):
        assert await refusal(checker, body) == (
            "input 'x': expected FP32 of shape [-1, 4], got a list of 3 at index [0]"
        )


STRINGS = Signature("tensors", (TensorSpec("x", "BYTES", (-1,)),), ())
NUMBERS = nouns.revision().signature


@pytest.mark.parametrize(
    ("content_type", "signature", "body"),
    [
        ("image/\udcff", NUMBERS, b"{}"),
        ("application/json", STRINGS, b'{"inputs":{"x":["\\ud83d"]}}'),
        ("application/json", STRINGS, b'{"inputs":{"x":["\xff"]}}'),
        ("application/json", NUMBERS, b'{"inputs":{"x":' + b"[" * 3000),
        ("application/json", NUMBERS, b'{"inputs":{"\\u0000' + b"y" * 5000 + b'":1}}'),
        ("application/x-npy", NUMBERS, b"\x93NUMPY"),
        ("", NUMBERS, b""),
    ],
)
def test_the_process_explains_as_the_loop_does(
    content_type: str, signature: Signature, body: bytes
) -> None:
    """A body gets the same answer there, whatever its headers and its text have."""
    asked = Question(content_type, "\ud83d", None, signature, {})
    with pytest.raises(RequestError) as here:
        check(asked, body)
    process = CheckProcess()
    with pytest.raises(RequestError) as there:
        process.check(asked, Content(body))
    process.close()

    assert there.value.to_json() == here.value.to_json()


async def test_a_declared_finite_input_is_held_to_it(checker: ColdCheck) -> None:
    """NaN is refused only for an input that the manifest declares finite."""
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[-1,4],"parameters":{'
    for rows_there in (1, 8000):
        size = 16 * rows_there
        text = head.replace(b"-1", b"%d" % rows_there) + b'"binary_data_size":%d}}]}' % size
        body = text + b"\0\0\xc0\x7f" * (4 * rows_there)
        meta = RequestMeta("application/octet-stream", "", len(text), "")

        assert await refusal(checker, body, meta) == ""
        strict = await refusal(checker, body, meta, inputs={"x": InputRule(finite=True)})
        assert strict == (
            "input 'x': expected finite FP32 values, got NaN or infinity at index [0, 0]"
        )


async def test_callers_take_turns_in_the_process(held: tuple[ColdCheck, HeldProcess]) -> None:
    """While one body is checked others wait, and each caller's first comes before a second."""
    checker, process = held
    tasks = started(checker, b"a1", b"a2", b"a3", b"b1")
    await asyncio.sleep(0)
    process.gate.set()
    await asyncio.wait(tasks)

    assert process.checked == [b"a1", b"a2", b"b1", b"a3"]


async def test_too_many_large_bodies_at_once_are_refused(
    held: tuple[ColdCheck, HeldProcess],
) -> None:
    """The line is bounded: the newest body of the caller with the most gets 429, others go on."""
    checker, process = held
    tasks = started(checker, *[b"a1"] * (WAITING_MAX + 1), b"b1")
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    assert [type(task.exception()) for task in done] == [QueueFull]
    assert tasks[-1] in rest
    await checked(checker, GOOD)  # a small body needs no process
    process.gate.set()
    await asyncio.wait(rest)
    assert all(task.exception() is None for task in rest)
    await asyncio.gather(*started(checker, b"a1"))


async def test_a_client_that_leaves_frees_its_place(held: tuple[ColdCheck, HeldProcess]) -> None:
    """A cancelled check leaves the line, or is given up if it runs."""
    checker, process = held
    tasks = started(checker, b"a1", b"a2", b"a3")
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()
    await asyncio.wait(tasks[:2])
    process.gate.set()
    await tasks[2]

    assert (process.checked, process.aborted) == ([b"a1", b"a3"], 1)


async def test_a_body_waits_for_its_check_in_bounded_time() -> None:
    """A body whose turn does not come gets 503 and when to try again; the running check goes on."""
    process = HeldProcess()
    checker = ColdCheck(process, wait_s=0.01)
    running, late = started(checker, b"a1", b"a2")
    with pytest.raises(WaitBudgetOver) as caught:
        await late
    assert caught.value.retry_after_s == 0.01
    assert "took more than 0.01 s to check" in caught.value.message
    process.gate.set()
    await running
    assert process.checked == [b"a1"]
    checker.close()


async def test_what_cannot_be_checked_goes_to_the_replica() -> None:
    """The check spares wake-ups only: beyond its limits a body passes."""
    process = HeldProcess(Unchecked("the check took longer than 5 s"))
    checker = ColdCheck(process)
    process.gate.set()

    assert await refusal(checker, LARGE) == ""
    checker.close()


def question(**fields: Any) -> Question:
    """Return the question of JSON for the usual revision."""
    revision = nouns.revision(**fields)
    return Question("application/json", "", None, revision.signature, revision.inputs)


def test_a_slow_check_ends_with_its_process() -> None:
    """A check over its time is not waited for; the next body gets a new process."""
    process = CheckProcess(limit_s=1e-6)
    with pytest.raises(Unchecked, match="took longer than"):
        process.check(question(), Content(LARGE))
    process.close()


def test_a_check_that_is_given_up_ends_at_once() -> None:
    """The check ends without a result, and the next body gets another process."""
    process = CheckProcess(limit_s=60.0)
    process.check(question(), Content(LARGE))
    first = process.child
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(process.check, question(), Content(rows(400_000)))
        process.abort()
        assert slow.exception() is None or isinstance(slow.exception(), Unchecked)
    process.check(question(), Content(LARGE))

    assert process.child is not first
    process.close()


@pytest.mark.parametrize("width", [4, 3])
async def test_a_body_in_a_file_of_its_own_is_not_copied(checker: ColdCheck, width: int) -> None:
    """The process reads the file as far as the body goes, and finds the same as in a copy; the
    error references no body."""
    body = rows(BODY_MIN // 10, width)
    memory = BodyMemories().allocate(2 * len(body))
    assert memory is not None
    memory.view[: len(body)] = body
    found: asyncio.Queue[BaseException | None] = asyncio.Queue(1)
    content = Content(memory.view[: len(body)], memory.descriptor)
    checker.check(JSON, content, nouns.revision(), "", found.put_nowait)
    error = await found.get()

    told = error.message if isinstance(error, RequestError) else ""
    assert told == await refusal(checker, body)
    assert bool(told) == (width == 3)
    assert error is None or error.__traceback__ is None


def test_a_killed_process_is_replaced() -> None:
    """The check after a kill starts another process, and answers as before."""
    process = CheckProcess()
    process.check(question(), Content(LARGE))
    first = process.child
    assert first is not None
    os.kill(first.pid, 9)
    first.wait()
    process.check(question(), Content(LARGE))

    assert process.child is not first
    process.close()
    assert process.child is None
    with pytest.raises(Unchecked, match="the server is shutting down"):
        process.check(question(), Content(LARGE))


def test_a_body_that_needs_too_much_memory_is_left_to_the_replica() -> None:
    """The process has a limit of memory, and says so in an answer."""
    process = CheckProcess(limit_s=60)
    empty = b'{"inputs":{"a":[' + b"[]," * 18_000_000 + b"[]]}}"
    with pytest.raises(Unchecked, match="the check needs more than 1280 MiB"):
        process.check(question(signature=Signature("json", (), ())), Content(empty))
    process.close()
