"""Tests of moving traffic while functions are called: no call is lost, whether it fits the new
revision or not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import models
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import MODEL, until
from tests.support.server import Answer, Gate, ServingServer, serving

ROW: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}
ANY: dict[str, Any] = {"inputs": {}}
RATE_S = 0.01
"""Seconds between two calls of one caller."""


def model(number: int) -> dict[str, bytes]:
    """Return a bundle that differs for each number."""
    return {f"m{number}.onnx": MODEL * number}


class Callers:
    """Callers of `f` that keep every answer."""

    def __init__(self, server: ServingServer, body: dict[str, Any]) -> None:
        self._server = server
        self._body = body
        self._ending = asyncio.Event()
        self.answers: list[Answer] = []

    async def call(self) -> None:
        """Call at a constant rate until the end, without waiting for answers."""
        async with asyncio.TaskGroup() as group:
            while not self._ending.is_set():
                group.create_task(self._once())
                try:
                    async with asyncio.timeout(RATE_S):
                        await self._ending.wait()
                except TimeoutError:
                    continue

    async def _once(self) -> None:
        self.answers.append(await self._server.call("f", self._body))

    def end(self) -> None:
        """Stop calling; calls in flight are still answered."""
        self._ending.set()

    async def heard(self, revision: str) -> None:
        """Wait for an answer of that revision."""
        await until(lambda: any(a.headers.get("Fn-Revision") == revision for a in self.answers))

    @property
    def statuses(self) -> Counter[int]:
        """Count the answers by status."""
        return Counter(answer.status for answer in self.answers)


@asynccontextmanager
async def called(server: ServingServer, body: dict[str, Any] = ANY) -> AsyncIterator[Callers]:
    """Call `f` while the block runs."""
    callers = Callers(server, body)
    async with asyncio.TaskGroup() as group:
        group.create_task(callers.call())
        try:
            yield callers
        finally:
            callers.end()


async def roll_back(server: ServingServer, **fields: Any) -> dict[str, Any]:
    """Roll back; return the ended operation."""
    answer = await server.admin("POST", "/functions/f/rollback", fields)
    assert answer.status == 202, answer.body
    ended: dict[str, Any] = (await server.ended(answer.json())).json()
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 1])
async def test_no_call_is_lost_by_deploys_and_rollbacks(tmp_path: Path, slots: int) -> None:
    """Under constant calls, each is answered 200 by the old or the new revision, with and without
    room for both."""
    driver = FakeDriver(Script(start_s=0.02, load_s=0.02, run_s=0.002, batch=8))
    async with serving(tmp_path, driver, cpu_slots=slots) as server:
        await server.deploy({"m.onnx": MODEL}, name="f")
        async with called(server) as callers:
            await callers.heard("f@1")
            results = []
            for number in (2, 3):
                # The same model under other settings: no trial has to wait for a busy slot.
                again = await server.deploy({"m.onnx": MODEL}, name="f", batch_max=number)
                results.append(again)
                await callers.heard(f"f@{number}")
            for number in (2, 1):
                results.append((await roll_back(server))["result"])
                last = await server.call("f", ANY)
                assert last.headers["Fn-Revision"] == f"f@{number}"

    assert callers.statuses.keys() == {200}
    assert {a.headers["Fn-Revision"] for a in callers.answers} == {"f@1", "f@2", "f@3"}
    switches = {result["switch"] for result in results}
    if slots == 2:
        assert switches == {"warm before traffic moved"}
    else:
        assert all(switch.startswith("no room for both: ") for switch in switches)


@pytest.mark.slow
async def test_real_replicas_lose_no_call_either(tmp_path: Path) -> None:
    """With real replicas every call is answered right during a deploy and a rollback."""
    add_one = models.add_one(tmp_path)
    # Another sample needs a trial, which has the second slot before the revision has it.
    settings = "schema = 1\n[sample]\nx = [[1, 2, 3, 4]]\n"
    async with serving(tmp_path, cpu_slots=2) as server:
        await server.deploy(add_one, name="f")
        async with called(server, ROW) as callers:
            await callers.heard("f@1")
            deployed = await server.deploy(add_one, name="f", manifest=settings)
            await callers.heard("f@2")
            back = await roll_back(server)
            await server.until_shown("f", revision="f@1")

    assert (deployed["switch"], back["result"]["switch"]) == ("warm before traffic moved",) * 2
    assert callers.statuses.keys() == {200}
    assert all(answer.json()["outputs"] == {"y": [[2, 3, 4, 5]]} for answer in callers.answers)


async def test_held_calls_go_with_the_traffic(tmp_path: Path) -> None:
    """Calls held for a loading revision move to the new one, except those that name a revision."""
    gate = Gate()
    driver = FakeDriver(Script(load_s=1, batch=4), sleep=gate)
    async with serving(tmp_path, driver, cpu_slots=1) as server:
        await server.deploy(model(1), name="f")
        await server.deploy(model(2), name="f")
        gate.shut()
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(server.call("f", ANY)) for _ in range(3)]
            await server.until_shown("f", held=3)
            pinned = group.create_task(server.call("f@2", ANY))
            await server.until_shown("f", held=4)
            back = await roll_back(server)
            await server.until_shown("f", revision="f@1", held=3)
            gate.open()

    assert back["result"]["switch"].startswith("no room for both")
    assert [call.result().status for call in held] == [200] * 3
    assert {call.result().headers["Fn-Revision"] for call in held} == {"f@1"}
    assert pinned.result().headers["Fn-Revision"] == "f@2"


async def test_held_calls_that_do_not_fit_stay(tmp_path: Path) -> None:
    """A held call that does not fit the new revision is answered by the old one."""
    gate = Gate()

    class Changing(FakeDriver):
        def become(self, rows: int) -> None:
            takes = Signature("tensors", (TensorSpec("x", "FP32", (rows, 4)),), ())
            self._script = Script(load_s=1, signature=takes)

    driver = Changing(sleep=gate)
    async with serving(tmp_path, driver, cpu_slots=2, standbys=0) as server:
        driver.become(-1)
        await server.deploy(model(1), name="f")
        driver.become(1)
        refused = (await server.try_deploy(model(2), name="f")).json()
        assert (refused["error"]["code"], refused["state"]) == ("incompatible", "failed")
        gate.shut()
        async with asyncio.TaskGroup() as group:
            held = group.create_task(server.call("f", ROW))
            await server.until_shown("f", held=1)
            gate.open()
            meant = await server.try_deploy(model(2), name="f", breaking=True)
        assert meant.json()["result"]["revision"] == "f@2", meant.json()
        assert held.result().headers["Fn-Revision"] == "f@1"
        assert (await roll_back(server))["state"] == "done"
        again = await server.admin("POST", "/functions/f/rollback", {"to": 2})
        assert (again.status, again.problem["code"]) == (422, "incompatible")
        assert again.problem["breaks"] == ["input 'x' was FP32 [any, 4] and is FP32 [1, 4]"]
