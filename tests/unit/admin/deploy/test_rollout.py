"""Tests of moving traffic to another revision: after warming it, or with calls held."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admin.deploy.rollout import check_compatible, last_lines, log_tail, wait_until
from registry.errors import Incompatible
from registry.model.operations import Operation
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import MODEL, UNTIL_S, Operator, operating, until
from tests.support.server import LARGE, ROOM_MIB, Gate

OLD, NEW = "default/digits@1", "default/digits@2"
KNOWN = {"batch_max": 4}
"""Overrides that make a new revision of a verified model, so that no trial precedes its warming."""
FIXED = Signature("tensors", (TensorSpec("x", "FP32", (1, 4)),), ())
FREE = Signature("tensors", (TensorSpec("x", "FP32", (-1, 4)),), ())


class Changing(FakeDriver):
    """Driver whose new replicas follow the current script."""

    def become(self, script: Script) -> None:
        """Use this script for replicas started from now on."""
        self._script = script


@pytest.fixture
async def awake(operator: Operator) -> Operator:
    """digits@1 is deployed and warm."""
    await operator.deploy("digits")
    await operator.manager.warm(OLD)
    return operator


def state(operator: Operator, key: str) -> str:
    """Return the state of a pool, or "gone"."""
    pool = operator.manager.pool(key)
    return pool[0].state if pool else "gone"


def current(operator: Operator) -> int:
    """Return the number of the revision with the traffic."""
    return operator.store.catalog.resolve("digits").revision.number


async def stored(operator: Operator) -> list[int]:
    """Return the numbers of the revisions in the store."""
    return sorted(one.revision.number for one in await operator.store.functions.load_all())


async def test_a_cold_function_moves_at_once(operator: Operator) -> None:
    """A cold function gets its new revision at once, without warming it."""
    await operator.deploy("digits")

    ended = await operator.deploy("digits", overrides=KNOWN)

    assert (ended.result["switch"], ended.result["revision"]) == ("digits@2 is cold", "digits@2")
    assert (current(operator), state(operator, NEW)) == (2, "cold")


async def test_a_warm_function_stays_warm(awake: Operator, gate: Gate) -> None:
    """A warm function keeps its revision until a replica of the new one is ready."""
    gate.shut()
    operation = await awake.start("digits", overrides=KNOWN)
    await awake.reached(operation.id, "warm")
    await until(lambda: gate.waiting == 1)
    assert (current(awake), await stored(awake)) == (1, [1, 2])
    assert state(awake, OLD) == "warm"
    gate.open()

    ended = await awake.ended(operation.id)

    assert ended.result["switch"] == "warm before traffic moved"
    assert (current(awake), state(awake, NEW)) == (2, "warm")


async def test_a_floor_is_reason_enough_to_be_warm(operator: Operator) -> None:
    """With a minimum of replicas in the new settings, one is ready before the traffic moves."""
    await operator.deploy("digits")

    ended = await operator.deploy("digits", overrides={**KNOWN, "min": 1})

    assert ended.result["switch"] == "warm before traffic moved"
    assert state(operator, NEW) == "warm"


async def test_a_replica_is_warmed_under_the_settings_that_come(awake: Operator) -> None:
    """The new revision is warmed with its new settings, such as a longer timeout."""
    await awake.deploy("digits", overrides={**KNOWN, "timeout_s": 7.0})

    assert awake.manager._bindings[NEW].spec.timeout_s == 7.0


async def test_without_room_for_both_the_traffic_moves_first(tmp_path: Path) -> None:
    """If the old revision holds all the memory, the traffic moves first; the old one makes room
    and the new one becomes warm."""
    async with operating(tmp_path, FakeDriver(LARGE), memory_mib=ROOM_MIB) as operator:
        await operator.deploy("digits", overrides={"min": 1})
        await until(lambda: state(operator, OLD) == "warm")

        ended = await operator.deploy("digits", overrides={**KNOWN, "min": 0})

        assert ended.result["switch"] == "no room for both: digits@1 makes room, calls are held"
        assert current(operator) == 2
        await until(lambda: state(operator, NEW) == "warm")


async def test_a_revision_that_does_not_become_ready_gets_no_traffic(tmp_path: Path) -> None:
    """A revision that does not become ready fails the deploy with the reason and the log, and is
    removed; its number is not reused."""
    driver = Changing()
    async with operating(tmp_path, driver) as operator:
        await operator.deploy("digits")
        await operator.manager.warm(OLD)
        driver.become(Script(refuse_load="no memory left"))

        ended = await operator.deploy("digits", overrides=KNOWN)

        assert (ended.state, ended.phase, ended.error["code"]) == (
            "failed",
            "warm",
            "model_refused",
        )
        assert ended.error["detail"] == (
            "digits@2 does not become ready: no memory left; calls still go to digits@1"
        )
        assert any("starts for default/digits@2" in line for line in ended.error["log_tail"])
        assert (current(operator), await stored(operator)) == (1, [1])
        assert operator.store.catalog.find("digits@2") is None
        await until(lambda: state(operator, NEW) == "gone")

        driver.become(Script())
        assert (await operator.deploy("digits", overrides=KNOWN)).result["revision"] == "digits@3"


async def test_a_cancelled_warming_leaves_nothing(awake: Operator, gate: Gate) -> None:
    """Cancelling the warming removes the new revision and its replica; the traffic stays."""
    gate.shut()
    operation = await awake.start("digits", overrides=KNOWN)
    await until(lambda: gate.waiting == 1)

    ended = await awake.deploys.runner.cancel(operation.id)

    assert ended.state == "cancelled"
    gate.open()
    await until(lambda: state(awake, NEW) == "gone")
    assert (current(awake), await stored(awake)) == (1, [1])


async def test_a_restart_while_warming_goes_on_with_the_same_revision(
    tmp_path: Path,
) -> None:
    """After a restart the staged revision is warmed and gets the traffic, under the same number."""
    gate = Gate()
    async with operating(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as operator:
        await operator.deploy("digits", overrides={"min": 1})
        await until(lambda: state(operator, OLD) == "warm")
        gate.shut()
        operation = await operator.start("digits", overrides={**KNOWN, "min": 1})
        await until(lambda: gate.waiting == 1)
        assert await stored(operator) == [1, 2]
        gate.open()
        await operator.deploys.close()

    async with operating(tmp_path) as operator:
        ended = await operator.ended(operation.id)

        assert (ended.state, ended.result["revision"]) == ("done", "digits@2")
        assert (current(operator), await stored(operator)) == (2, [1, 2])
        assert await operator.store.traffic.previous("digits") == 1


async def test_an_abandoned_staged_revision_is_removed(tmp_path: Path) -> None:
    """At a start, a staged revision without a running operation is removed."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        old = operator.store.catalog.resolve("digits")
        bundle = operator.store.bundles[old.revision.bundle]
        await operator.store.traffic.stage(old.revision, bundle, nouns.profile(), "dead")

    async with operating(tmp_path) as operator:
        assert await stored(operator) == [1]
        assert operator.store.catalog.find("digits@2") is None


@pytest.mark.parametrize("breaking", [False, True])
async def test_callers_break_only_with_breaking(tmp_path: Path, breaking: bool) -> None:
    """An incompatible signature is refused with the list of breaks, before it takes a number;
    --breaking allows it."""
    driver = Changing(Script(signature=FREE))
    async with operating(tmp_path, driver) as operator:
        await operator.deploy("digits")
        driver.become(Script(signature=FIXED))
        files = {"n.onnx": b"\x3a\x00\x3a\x00"}

        ended = await operator.deploy("digits", files=files, breaking=breaking)

        if breaking:
            assert ended.result["revision"] == "digits@2"
            return
        assert (ended.state, ended.error["code"]) == ("failed", "incompatible")
        assert ended.error["breaks"] == ["input 'x' was FP32 [any, 4] and is FP32 [1, 4]"]
        assert ended.error["detail"] == (
            "compared with digits@1: input 'x' was FP32 [any, 4] and is FP32 [1, 4];"
            " pass --breaking to allow it"
        )
        assert await stored(operator) == [1]


def test_a_compatible_signature_is_not_refused() -> None:
    """A signature that accepts more passes; one that accepts less passes only with `breaking`."""
    fixed, free = (nouns.revision(signature=each) for each in (FIXED, FREE))

    check_compatible(fixed, free, breaking=False)
    check_compatible(free, fixed, breaking=True)
    with pytest.raises(Incompatible):
        check_compatible(free, fixed, breaking=False)


async def test_an_operation_of_another_server_that_was_done_stays_done(tmp_path: Path) -> None:
    """A rollback whose server ended after the switch is done and does not go further back."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.deploy("digits", overrides=KNOWN)
        done = Operation("dead", "rollback", "digits", {"to": 1, "breaking": False})
        await operator.store.operations.put(done)
        await operator.store.traffic.move(nouns.function(revision=1))

    async with operating(tmp_path) as operator:
        ended = await operator.ended("dead")

        assert (ended.state, current(operator)) == ("done", 1)
        assert ended.result["switch"] == "calls of digits go to digits@1 already"


@pytest.mark.slow  # room is searched once a second
async def test_a_warm_function_that_made_room_for_its_trial_becomes_warm_again(
    tmp_path: Path,
) -> None:
    """A trial that needs the old revision's memory takes it; the new revision is warm before the
    traffic moves."""
    async with operating(tmp_path, FakeDriver(LARGE), memory_mib=ROOM_MIB) as operator:
        await operator.deploy("digits")
        await operator.manager.warm(OLD)

        ended = await operator.deploy("digits", files={"m.onnx": MODEL * 3})

        assert ended.result["switch"] == "warm before traffic moved"
        assert (state(operator, OLD), state(operator, NEW)) == ("cold", "warm")


KEY = "default/digits@1"


async def test_a_pool_change_ends_the_wait(tmp_path: Path) -> None:
    """A pool's change re-evaluates the condition, and the subscription ends with the wait."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        manager = operator.manager
        before = len(manager._publisher.messages)

        def is_warm() -> bool:
            pool = manager.pool(KEY)
            return pool is not None and pool[0].state == "warm"

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait_until(manager, is_warm, UNTIL_S))
            group.create_task(manager.warm(KEY))

        assert waiting.result()
        assert len(manager._publisher.messages) == before


async def test_time_ends_the_wait(tmp_path: Path) -> None:
    """A wait whose time is over returns False."""
    async with operating(tmp_path) as operator:
        assert not await wait_until(operator.manager, lambda: False, 0)


def test_only_the_last_lines_count() -> None:
    """The last lines are returned, with invalid UTF-8 replaced."""
    assert last_lines(b"a\nb\nc\xff\n", 2) == ["b", "c\ufffd"]
    assert last_lines(b"", 2) == []


async def test_the_newest_replica_is_asked(tmp_path: Path) -> None:
    """The log tail is that of the newest replica; a function without one has no lines."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.manager.warm("default/digits@1")

        assert "starts for default/digits@1" in (await log_tail(operator.manager, "digits"))[0]
        assert await log_tail(operator.manager, "nobody") == []
