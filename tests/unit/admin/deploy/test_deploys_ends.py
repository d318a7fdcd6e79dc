"""How deploys end: cancelled, with a locked store, with their server, with their function."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pool_manager.drivers.fake import FakeDriver, Script
from registry.errors import (
    StoreUnavailable,
    Unknown,
    UnknownFunction,
)
from tests.support.operator import UNTIL_S, Operator, locked, operating, until
from tests.support.server import Gate

OTHER = {"other.onnx": b"\x3a\x00\x3a\x00"}


@pytest.mark.parametrize("loads", [False, True])
async def test_a_cancelled_deploy_changes_nothing(
    operator: Operator, gate: Gate, loads: bool
) -> None:
    """At once or while its model loads, it ends as cancelled and its throw-away replica goes."""
    gate.shut()
    operation = await operator.start("digits")
    if loads:
        await until(lambda: gate.waiting == 1)

    ended = await operator.deploys.runner.cancel(operation.id)

    assert ended.state == "cancelled"
    assert operator.store.catalog.all() == ()
    await until(lambda: not operator.manager.replicas())
    gate.open()
    assert (await operator.deploy("digits")).result["revision"] == "digits@1"


async def test_a_waiting_deploy_can_be_cancelled(operator: Operator, gate: Gate) -> None:
    """It leaves the line, and the one before it goes on."""
    gate.shut()
    first = await operator.start("digits")
    second = await operator.start("digits", files=OTHER)

    assert (await operator.deploys.runner.cancel(second.id)).state == "cancelled"

    gate.open()
    assert (await operator.ended(first.id)).state == "done"


async def test_a_switch_that_began_is_not_torn_by_a_cancellation(
    tmp_path: Path, gate: Gate
) -> None:
    """Cancelled during its transaction, a deploy is done: store and memory hold the same."""
    driver = FakeDriver(Script(load_s=1), sleep=gate)
    async with operating(tmp_path, driver, busy_s=30.0) as operator:
        gate.shut()
        operation = await operator.start("digits")
        await operator.reached(operation.id, "verify")
        async with asyncio.TaskGroup() as group:
            with locked(operator.store.settings.database):
                gate.open()
                await operator.reached(operation.id, "switch")
                cancelling = group.create_task(operator.deploys.runner.cancel(operation.id))
                await asyncio.sleep(0)

        assert cancelling.result().state == "done"
        assert operator.store.catalog.resolve("digits").revision.number == 1
        stored = await operator.store.functions.load_all()
        assert [one.revision.ref for one in stored] == ["digits@1"]


async def test_an_ended_operation_stays_as_it_is(operator: Operator) -> None:
    """Cancelling it changes nothing; one that never was is unknown."""
    done = await operator.deploy("digits")

    assert await operator.deploys.runner.cancel(done.id) == done
    with pytest.raises(Unknown):
        await operator.deploys.runner.cancel("nothing")


async def test_a_locked_store_accepts_no_deploy(operator: Operator) -> None:
    """What cannot be stored is refused at once and does not run."""
    request = await operator.request()
    with locked(operator.store.settings.database), pytest.raises(StoreUnavailable):
        await operator.deploys.start("digits", request, id)

    assert await operator.deploys.runner.newest() == []
    assert (await operator.deploy("digits")).result["revision"] == "digits@1"


async def test_a_store_locked_at_the_switch_leaves_the_old_revision(tmp_path: Path) -> None:
    """The deploy fails and says so; its end is told at once and stored when that is possible."""
    paused, again, gate = asyncio.Event(), asyncio.Event(), Gate()

    async def pause(_seconds: float) -> None:
        paused.set()
        await again.wait()

    driver = FakeDriver(Script(load_s=1), sleep=gate)
    async with operating(tmp_path, driver, pause) as operator:
        await operator.deploy("digits")
        gate.shut()
        operation = await operator.start("digits", files=OTHER)
        await operator.reached(operation.id, "verify")
        with locked(operator.store.settings.database):
            gate.open()
            ended = await operator.ended(operation.id)
            await paused.wait()
        assert (ended.state, ended.error["code"]) == ("failed", "store_unavailable")
        assert operator.store.catalog.resolve("digits").revision.number == 1
        assert (await operator.deploys.runner.newest())[0] == ended
        assert (await operator.store.operations.get(operation.id)).state == "running"

        again.set()

        async with asyncio.timeout(UNTIL_S):
            while (await operator.store.operations.get(operation.id)).state == "running":
                pass
        assert await operator.store.operations.get(operation.id) == ended


async def test_what_a_server_did_not_finish_the_next_one_does(tmp_path: Path) -> None:
    """An operation that was held in loading when its server ended is done after the restart."""
    async with operating(tmp_path, FakeDriver(Script(hang_at="load"))) as operator:
        operation = await operator.start("digits", derived_name=True)
        await operator.reached(operation.id, "verify")

    async with operating(tmp_path) as operator:
        ended = await operator.ended(operation.id)

    assert (ended.state, ended.result["revision"]) == ("done", "digits@1")


async def test_removing_ends_the_deploys_that_run(operator: Operator, gate: Gate) -> None:
    """A removed function does not come back through a deploy that was accepted before."""
    await operator.deploy("digits")
    gate.shut()
    operation = await operator.start("digits", files=OTHER)
    await operator.reached(operation.id, "verify")

    await operator.deploys.remove("digits")

    assert (await operator.ended(operation.id)).state == "cancelled"
    assert operator.store.catalog.find("digits") is None
    assert await operator.store.functions.load_all() == []
    with pytest.raises(UnknownFunction):
        await operator.deploys.remove("digits")


async def test_a_number_is_never_given_twice(operator: Operator) -> None:
    """What is deployed after a removal is the next revision, not the first once more."""
    await operator.deploy("digits")
    await operator.deploys.remove("digits")

    assert (await operator.deploy("digits")).result["revision"] == "digits@2"


async def test_who_waits_is_answered_when_the_server_stops(operator: Operator, gate: Gate) -> None:
    """A long poll does not hold up the shutdown; the operation stays as it is for the next."""
    gate.shut()
    operation = await operator.start("digits")
    await operator.reached(operation.id, "verify")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(operator.deploys.runner.wait(operation.id, "verify", 600))
        await asyncio.sleep(0)
        await operator.deploys.runner.stop_waiting()

    assert waiting.result().state == "running"


async def test_a_wait_ends_with_its_time(operator: Operator, gate: Gate) -> None:
    """Nothing has changed by then, and the operation is told as it is."""
    gate.shut()
    operation = await operator.start("digits")
    await until(lambda: gate.waiting == 1)

    assert (await operator.deploys.runner.wait(operation.id, "verify", 0)).phase == "verify"
