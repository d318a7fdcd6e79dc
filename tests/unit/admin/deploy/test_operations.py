"""Tests of the runner of background operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from admin.deploy.operations import AT_ONCE, SWITCH, OperationRunner, Phase
from gateway.admission.access import Caller
from registry.errors import Conflict, QueueFull, ShuttingDown
from registry.model.operations import Operation
from registry.store.database import Database
from registry.store.operations import RUNNING_MAX, Operations
from tests.support.operator import until


class Bench:
    """Runner whose work the test controls."""

    def __init__(self, database: Database) -> None:
        self.operations = Operations(database)
        self.go = asyncio.Event()
        self.begun: list[str] = []
        self.undone: list[str] = []
        self.phase = "work"
        self.error: BaseException | None = None
        self.runner = self.another()

    def another(self) -> OperationRunner:
        """Create a runner on the same store, as the next server does."""
        return OperationRunner(self.operations, {"deploy": self._work}, self._undo, lambda: 7.0)

    async def _work(self, operation: Operation, phase: Phase) -> dict[str, Any]:
        self.begun.append(operation.id)
        await phase(self.phase)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return {"done": operation.name}

    async def _undo(self, operation: Operation) -> None:
        self.undone.append(operation.id)

    async def ended(self, id: str) -> Operation:
        """Return the operation when it has ended."""
        await until(lambda: id not in {one.id for one in self.runner.running()})
        return await self.runner.get(id)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Runner whose work ends once `go` is set."""
    database = await Database.open(tmp_path / "fngate.db", busy_s=0)
    bench = Bench(database)
    yield bench
    await bench.runner.close()
    await database.close()


async def test_an_operation_is_stored_run_and_ended(bench: Bench) -> None:
    """A completed operation is stored with its result and not undone."""
    operation = await bench.runner.accept("deploy", "f", {"a": 1})
    assert (await bench.operations.get(operation.id)).state == "running"
    bench.go.set()

    ended = await bench.ended(operation.id)

    assert (ended.state, ended.phase, ended.result) == ("done", "work", {"done": "f"})
    assert (ended.ended_s, bench.undone) == (7.0, [])
    assert await bench.operations.get(operation.id) == ended


@pytest.mark.parametrize(
    ("error", "code"), [(Conflict("no"), "conflict"), (ValueError("a defect"), "internal")]
)
async def test_a_failed_operation_is_undone(bench: Bench, error: Exception, code: str) -> None:
    """A failed operation is undone; the text of a defect goes to the log only."""
    bench.error = error
    bench.go.set()
    operation = await bench.runner.accept("deploy", "f", {})

    ended = await bench.ended(operation.id)

    assert (ended.state, ended.error["code"]) == ("failed", code)
    assert "a defect" not in str(ended.error)
    assert bench.undone == [operation.id]


async def test_a_cancelled_operation_is_undone(bench: Bench) -> None:
    """A cancelled operation is undone, whether it was running or waiting."""
    first = await bench.runner.accept("deploy", "f", {})
    second = await bench.runner.accept("deploy", "f", {})
    await until(lambda: bench.begun == [first.id])

    ended = [await bench.runner.cancel(one.id) for one in (second, first)]

    assert [one.state for one in ended] == ["cancelled"] * 2
    assert bench.undone == [second.id, first.id]


async def test_the_switch_is_not_cancelled(bench: Bench) -> None:
    """An operation in its switch phase is completed; the cancellation returns it as done."""
    bench.phase = SWITCH
    operation = await bench.runner.accept("deploy", "f", {})
    await until(lambda: bench.runner.running()[0].phase == SWITCH)
    async with asyncio.TaskGroup() as group:
        cancelling = group.create_task(bench.runner.cancel(operation.id))
        await asyncio.sleep(0)
        bench.go.set()

    assert (cancelling.result().state, bench.undone) == ("done", [])


@pytest.mark.parametrize("how", ["closed", "shutting down"])
async def test_an_interrupted_operation_is_run_again(bench: Bench, how: str) -> None:
    """An operation interrupted by a shutdown is neither ended nor undone; the next runner runs it
    under the same id."""
    operation = await bench.runner.accept("deploy", "f", {})
    await until(lambda: bool(bench.begun))
    if how == "closed":
        await bench.runner.close()
    else:
        bench.error = ShuttingDown("the server is shutting down")
        bench.go.set()
        await asyncio.wait([bench.runner._running[operation.id][1]])
    assert (await bench.operations.get(operation.id)).state == "running"

    bench.error = None
    bench.go.set()
    bench.runner = bench.another()
    await bench.runner.resume()

    assert (await bench.ended(operation.id)).state == "done"
    assert (bench.begun, bench.undone) == ([operation.id] * 2, [])


async def test_a_few_are_run_at_once(bench: Bench) -> None:
    """A few operations of different names run at once, of one key half of all; a waiting one of the
    same name takes no turn."""
    for number in range(AT_ONCE + 1):
        await bench.runner.accept("deploy", f"f{number}", {})
        await bench.runner.accept("deploy", "f0", {})
    await until(lambda: len(bench.begun) == AT_ONCE // 2)

    await asyncio.sleep(0)

    assert len(bench.begun) == AT_ONCE // 2
    bench.go.set()
    await until(lambda: not bench.runner.running())
    assert len(bench.begun) == 2 * (AT_ONCE + 1)


async def test_another_key_need_not_wait_for_the_operations_of_one(bench: Bench) -> None:
    """A key with as many operations as it may have leaves a turn, a place and a wait to the next
    key, also after a restart; one more of it is refused."""
    for number in range(RUNNING_MAX // 2):
        await bench.runner.accept("deploy", f"f{number}", {}, Caller("a", ()))
    with pytest.raises(QueueFull, match=f"at most {RUNNING_MAX} are possible"):
        await bench.runner.accept("deploy", "more", {}, Caller("a", ()))
    await bench.runner.close()
    bench.runner, bench.begun = bench.another(), []
    await bench.runner.resume()
    with pytest.raises(QueueFull):
        await bench.runner.accept("deploy", "more", {}, Caller("a", ()))

    other = await bench.runner.accept("deploy", "g", {}, Caller("b", ()))
    await until(lambda: other.id in bench.begun)

    bench.go.set()
    assert (await bench.ended(other.id)).state == "done"
    await until(lambda: not bench.runner.running())
    await bench.runner.accept("deploy", "more", {}, Caller("a", ()))


async def test_operations_of_one_name_go_in_turn(bench: Bench) -> None:
    """The deploy of a key to a function waits for the one that runs and the next, not for all that
    another key has asked for."""
    many = [await bench.runner.accept("deploy", "f", {}, Caller("a", ())) for _ in range(6)]
    other = await bench.runner.accept("deploy", "f", {}, Caller("b", ()))

    bench.go.set()
    await until(lambda: not bench.runner.running())

    assert bench.begun.index(other.id) <= 2
    bench.begun.remove(other.id)
    assert bench.begun == [one.id for one in many]


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
async def test_an_operation_aside_leaves_its_turn_to_others(tmp_path: Path, end: str) -> None:
    """More than a few wait aside at once; however they end, no turn is lost or given twice."""
    database = await Database.open(tmp_path / "fngate.db", busy_s=0)
    go, begun = asyncio.Event(), list[str]()

    async def work(operation: Operation, _phase: Phase) -> dict[str, Any]:
        begun.append(operation.id)
        async with runner.aside(operation.id):
            await go.wait()
            if end == "failed":
                raise Conflict("no")
        return {}

    async def undo(_operation: Operation) -> None:
        pass

    runner = OperationRunner(Operations(database), {"deploy": work}, undo, lambda: 7.0)
    for number in range(2 * AT_ONCE):
        await runner.accept("deploy", f"f{number}", {})
    await until(lambda: len(begun) == 2 * AT_ONCE)

    if end == "cancelled":
        for id in begun:
            runner.request_cancel(id)
    go.set()
    await until(lambda: not runner.running())

    assert {one.state for one in await runner.newest()} == {end}
    assert (len(runner._turns), runner._aside) == (0, set())
    await runner.close()
    await database.close()


async def test_waits_end_at_a_stop_and_may_begin_again(bench: Bench) -> None:
    """At a stop every wait is answered with what is; a gateway that replaces one lets them wait
    again."""
    operation = await bench.runner.accept("deploy", "f", {})
    await until(lambda: bench.begun == [operation.id])
    await bench.runner.stop_waiting()
    assert (await bench.runner.wait(operation.id, "work", 60.0)).state == "running"
    bench.runner.begin_waiting()
    waiting = asyncio.create_task(bench.runner.wait(operation.id, "work", 60.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    bench.go.set()

    assert (await waiting).state == "done"
