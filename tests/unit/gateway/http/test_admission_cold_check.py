"""Tests of the check that bad input does not pass while a function is cold."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.http.admission import IN_LOOP_MAX, WAITING_MAX, ColdCheck
from registry.errors import QueueFull
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.link.meta import RequestMeta
from tests.support import nouns

JSON = RequestMeta("application/json", "", -1, "")
GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


@pytest.fixture
def checker() -> Iterator[ColdCheck]:
    """A check, closed afterwards."""
    checker = ColdCheck()
    yield checker
    checker.close()


def rows(count: int, width: int = 4) -> bytes:
    """A JSON body of so many rows."""
    return json.dumps({"inputs": {"x": [[0.5] * width] * count}}).encode()


async def checked(checker: ColdCheck, meta: RequestMeta, body: bytes, revision: Any) -> None:
    """Wait for a check, small or large; raises what it found."""
    found: asyncio.Queue[BaseException | None] = asyncio.Queue(1)
    future = checker.check(meta, body, revision, found.put_nowait)
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
    """Why this body is refused, "" if it is not."""
    try:
        await checked(checker, meta, body, nouns.revision(**fields))
    except RequestError as error:
        return error.message
    return ""


async def test_good_input_passes_in_every_form(checker: ColdCheck) -> None:
    """Nothing is refused that a replica would take, small or large."""
    binary = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{'
    binary += b'"binary_data_size":16}}]}'
    with_length = RequestMeta("application/octet-stream", "", len(binary), "")

    assert await refusal(checker, GOOD) == ""
    assert await refusal(checker, rows(IN_LOOP_MAX // 10)) == ""
    assert await refusal(checker, binary + b"\0" * 16, with_length) == ""


async def test_bad_input_is_refused_small_or_large(checker: ColdCheck) -> None:
    """The text names input, expected and got, wherever the check ran."""
    small, large = rows(1, width=3), rows(IN_LOOP_MAX // 10, width=3)

    assert len(small) <= IN_LOOP_MAX < len(large)
    for body in (small, large):
        assert await refusal(checker, body) == (
            "input 'x': expected FP32 of shape [-1, 4], got a list of 3 at index [0]"
        )


async def test_a_declared_finite_input_is_held_to_it(checker: ColdCheck) -> None:
    """NaN is only refused where the manifest says so."""
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{'
    head += b'"binary_data_size":16}}]}'
    body = head + b"\0\0\xc0\x7f" * 4
    meta = RequestMeta("application/octet-stream", "", len(head), "")

    assert await refusal(checker, body, meta) == ""
    strict = await refusal(checker, body, meta, inputs={"x": InputRule(finite=True)})
    assert strict == "input 'x': expected finite FP32 values, got NaN or infinity at index [0, 0]"


async def crowd(checker: ColdCheck) -> tuple[list[asyncio.Task[None]], threading.Event]:
    """As many checks of large bodies as may wait, behind a thread that the event lets go."""
    gate = threading.Event()
    checker._thread.submit(gate.wait)
    large = rows(IN_LOOP_MAX // 10)
    tasks = [
        asyncio.create_task(checked(checker, JSON, large, nouns.revision()))
        for _ in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)
    return tasks, gate


async def test_too_many_large_bodies_at_once_are_turned_away(checker: ColdCheck) -> None:
    """The thread's queue is bounded; when it is through with it, the next may come."""
    large, revision = rows(IN_LOOP_MAX // 10), nouns.revision()
    tasks, gate = await crowd(checker)

    with pytest.raises(QueueFull, match=f"{WAITING_MAX} large requests are being checked"):
        await checked(checker, JSON, large, revision)
    await checked(checker, JSON, GOOD, revision)  # a small one needs no thread
    gate.set()
    await asyncio.wait(tasks)
    await checked(checker, JSON, large, revision)


async def test_a_client_that_leaves_frees_its_place(checker: ColdCheck) -> None:
    """A check that is no longer wanted counts no more."""
    tasks, gate = await crowd(checker)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])

    last = asyncio.create_task(checked(checker, JSON, rows(IN_LOOP_MAX // 10), nouns.revision()))
    await asyncio.sleep(0)
    gate.set()

    await asyncio.wait(tasks)
    await last
