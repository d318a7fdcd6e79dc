"""Tests of requests that must wait: full queues, spent budgets, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from registry.model.history import ColdStart
from tests.support.fake_driver.driver import FakeDriver
from tests.support.fake_driver.service import Script
from tests.support.server import Answer, Gate, ServingServer, serving

BODY: dict[str, Any] = {"inputs": {}}
LIMITED = 'schema = 1\nmodel = "m.onnx"\n[limits]\nqueue = 2\n'
MODEL = {"m.onnx": b"\x3a\x00"}
"""ONNX file with an empty graph, enough for fake replicas."""


@pytest.fixture
def gate() -> Gate:
    """Gate that blocks loads, or runs, while a test has it shut."""
    return Gate()


@pytest.fixture
async def cold(tmp_path: Path, gate: Gate) -> AsyncIterator[ServingServer]:
    """A server with the function `f` and 2 places in its queue; it becomes warm when the gate
    opens."""
    driver = FakeDriver(Script(load_s=1), sleep=gate)
    async with serving(tmp_path, driver, held_mib=1) as server:
        await server.deploy(MODEL, name="f", manifest=LIMITED)
        gate.shut()
        yield server
        gate.open()


@pytest.fixture
async def warm(tmp_path: Path, gate: Gate) -> AsyncIterator[ServingServer]:
    """A server with `f` on a warm replica that has room for two requests and runs one at a time,
    only while the gate is open."""
    async with serving(tmp_path, FakeDriver(Script(run_s=1), sleep=gate)) as server:
        await server.deploy(MODEL, name="f", manifest=LIMITED)
        assert (await server.call("f", BODY)).status == 200
        gate.shut()
        yield server
        gate.open()


@contextlib.asynccontextmanager
async def calling(
    server: ServingServer, count: int = 1, body: Any = None
) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """Call `f` while the block runs."""
    tasks = [asyncio.create_task(server.call("f", body or BODY)) for _ in range(count)]
    try:
        yield tasks
    finally:
        await asyncio.wait(tasks)


async def leave(task: asyncio.Task[Answer]) -> None:
    """Disconnect the client of this call."""
    task.cancel()
    await asyncio.wait([task])


async def test_a_queue_full_by_count_is_said_with_when_to_come_back(
    cold: ServingServer, gate: Gate
) -> None:
    """A call to a queue full by count is 429 with Retry-After; those in the queue are answered."""
    async with calling(cold, 2) as waiting:
        await cold.until_shown("f", held=2)
        answer = await cold.call("f", BODY)
        gate.open()

    assert answer.status == 429
    assert answer.problem["detail"] == "2 requests are queued already, at most 2 may wait"
    assert 1 <= int(answer.headers["Retry-After"]) <= 5
    assert answer.problem["retry_after_s"] == int(answer.headers["Retry-After"])
    assert [task.result().status for task in waiting] == [200, 200]


async def test_a_queue_full_by_bytes_is_said_with_when_to_come_back(
    cold: ServingServer, gate: Gate
) -> None:
    """A call to a queue full by bytes is 429 with Retry-After."""
    large = {"inputs": {"x": "y" * 700_000}}
    async with calling(cold, body=large) as waiting:
        await cold.until_shown("f", held=1)
        answer = await cold.call("f", large)
        gate.open()

    assert answer.status == 429
    assert answer.problem["detail"] == (
        "the requests held, and the answers that their clients have not taken, have 700021 bytes,"
        " at most 1048576 are allowed"
    )
    assert 1 <= int(answer.headers["Retry-After"]) <= 5
    assert waiting[0].result().status == 200


async def test_a_spent_wait_budget_does_not_end_the_wake_up(
    cold: ServingServer, gate: Gate
) -> None:
    """A spent wait budget is 503 with Retry-After; the function becomes warm anyway."""
    answer = await cold.call("f", BODY, Prefer="wait=0")

    assert answer.status == 503
    assert answer.problem["code"] == "wait_budget_over"
    assert answer.problem["detail"].startswith("not started within 0.")
    assert "; the function is waking: " in answer.problem["detail"]
    assert 1 <= int(answer.headers["Retry-After"]) <= 5
    assert len(cold.server.manager.replicas()) == 1

    gate.open()
    await cold.until_pools(lambda: "warm" in cold.gateway.invoker.delivery.states().values())
    assert (await cold.call("f", BODY, Prefer="wait=0")).status == 200


async def test_the_functions_own_budget_counts_where_the_client_names_none(
    cold: ServingServer, gate: Gate
) -> None:
    """Without `Prefer: wait` the budget is `wait_s` of function.toml, and then 503."""
    gate.open()
    await cold.deploy(MODEL, name="hasty", manifest=LIMITED + "wait_s = 0\n")
    gate.shut()

    answer = await cold.call("hasty", BODY)

    assert (answer.status, answer.problem["code"]) == (503, "wait_budget_over")


async def test_retry_after_comes_from_the_revisions_own_past(tmp_path: Path, gate: Gate) -> None:
    """Retry-After is the rest of the revision's usual cold start, 20 s here, also after a
    restart."""
    async with serving(tmp_path, FakeDriver()) as server:
        await server.deploy(MODEL, name="f", manifest=LIMITED)
        server.server.store.history.record(
            ColdStart("default", "f", 1, "r1", "cpu", 0.0, 20_000.0, {"load": 20_000.0})
        )
    gate.shut()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        answer = await server.call("f", BODY, Prefer="wait=0")
        gate.open()

    assert answer.problem["code"] == "wait_budget_over"
    assert 18 <= int(answer.headers["Retry-After"]) <= 21


async def test_cold_starts_whose_callers_left_count_too(tmp_path: Path, gate: Gate) -> None:
    """The duration of a cold start without waiting callers is recorded when its replica ends."""
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        await server.deploy(MODEL, name="f", manifest=LIMITED + "[scaling]\nidle_s = 0\n")
        for number in (1, 2):
            gate.shut()
            answer = await server.call("f", BODY, Prefer="wait=0")
            await server.until_pools(lambda: len(server.bound()) == 1)
            gate.open()
            await server.until_pools(lambda: not server.bound())
            ways = (await server.function("f"))["cold_starts"]
            assert (answer.status, sum(way["samples"] for way in ways)) == (503, number)


async def test_a_hopeless_wait_is_refused_at_once_and_wakes_the_function(
    tmp_path: Path, gate: Gate
) -> None:
    """If every known cold start took longer than the budget, the call is 503 at once with
    Retry-After.

    The function becomes warm anyway, and the next call is served.
    """
    slow = ColdStart("default", "f", 1, "r1", "cpu", 0.0, 20_000.0, {"load": 20_000.0})
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        await server.deploy(MODEL, name="f", manifest=LIMITED)
        for _ in range(5):
            server.server.store.history.record(slow)
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        before = await server.function("f")
        gate.shut()
        answer = await server.call("f", BODY, Prefer="wait=10")
        await server.until_pools(lambda: len(server.bound()) == 1)
        during = await server.function("f")
        gate.open()
        await server.until_pools(
            lambda: "warm" in server.gateway.invoker.delivery.states().values()
        )
        await server.until_shown("f", held=0)
        after = await server.call("f", BODY, Prefer="wait=0")

    assert (answer.status, answer.problem["code"]) == (503, "wait_budget_over")
    assert "; this request may wait 10 s" in answer.problem["detail"]
    assert int(answer.headers["Retry-After"]) == answer.problem["retry_after_s"] >= 18
    assert before["ready_in_ms"] == pytest.approx(20_000, rel=0.05)
    assert (during["state"], during["ready"]) == ("waking", 0)
    assert 0 < during["ready_in_ms"] <= before["ready_in_ms"]
    assert after.status == 200


async def test_a_wait_of_zero_is_enough_where_a_replica_has_room(
    warm: ServingServer, gate: Gate
) -> None:
    """`Prefer: wait=0` is 200 on a warm function, with Preference-Applied."""
    gate.open()

    answer = await warm.call("f", BODY, Prefer="wait=0")

    assert (answer.status, answer.headers["Preference-Applied"]) == (200, "wait=0")


async def test_a_client_that_leaves_while_held_frees_its_place(
    cold: ServingServer, gate: Gate
) -> None:
    """The place of a held call in a full queue is free as soon as its client disconnects, and the
    call is not run."""
    async with calling(cold, 2) as waiting:
        await cold.until_shown("f", held=2)
        await leave(waiting[0])
        await cold.until_shown("f", held=1)
        async with calling(cold) as next_one:
            await cold.until_shown("f", held=2)
            gate.open()

    assert waiting[0].cancelled()
    assert [task.result().status for task in (waiting[1], *next_one)] == [200, 200]
    assert await answered(cold) == 2


async def test_a_client_that_leaves_before_its_turn_costs_the_replica_nothing(
    warm: ServingServer, gate: Gate
) -> None:
    """A call that its replica has but has not started is cancelled there when its client
    disconnects."""
    async with calling(warm, 2) as waiting:
        await warm.until_shown("f", in_flight=2)
        await leave(waiting[1])
        await warm.until_shown("f", in_flight=1)
        gate.open()

    assert waiting[0].result().status == 200
    assert gate.waiting == 0


async def test_a_client_that_leaves_while_its_request_runs_affects_no_other(
    warm: ServingServer, gate: Gate
) -> None:
    """A running call of a client that disconnects is cancelled; the link stays, and the next call
    is answered."""
    async with calling(warm, 1) as running:
        await warm.until_shown("f", in_flight=1)
        await leave(running[0])
        async with calling(warm, 1) as next_one:
            await warm.until_shown("f", in_flight=2)
            gate.open()

    assert next_one[0].result().status == 200
    await warm.until_shown("f", in_flight=0, held=0)
    assert [replica.state for replica in warm.bound()] == ["ready"]


async def answered(server: ServingServer) -> int:
    """Return the number of successful requests of `f`, from the metrics."""
    page = (await server.get("/metrics")).body.decode()
    found = [line for line in page.splitlines() if 'outcome="ok"' in line and "_total" in line]
    return sum(int(float(line.split()[-1])) for line in found)
