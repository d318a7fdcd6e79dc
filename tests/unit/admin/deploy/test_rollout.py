"""How traffic moves to another revision: warm first, or its calls held."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admin.deploy.rollout import check_compatible, last_lines, log_tail, wait_until
from pool_manager.drivers.fake import FakeDriver, Script
from registry.errors import Incompatible
from registry.model import Operation
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns
from tests.support.operator import MODEL, SLOTS, UNTIL_S, Operator, operating, until
from tests.support.server import Gate

OLD, NEW = "default/digits@1", "default/digits@2"
KNOWN = {"batch_max": 4}
"""Makes another revision of a model that was verified: no trial stands before its warming."""
FIXED = Signature("tensors", (TensorSpec("x", "FP32", (1, 4)),), ())
FREE = Signature("tensors", (TensorSpec("x", "FP32", (-1, 4)),), ())


class Changing(FakeDriver):
    """Replicas follow the script that is set when they start."""

    def become(self, script: Script) -> None:
        """From now on replicas follow this one."""
        self._script = script


@pytest.fixture
async def awake(operator: Operator) -> Operator:
    """digits@1 is deployed and warm."""
    await operator.deploy("digits")
    await operator.manager.warm(OLD)
    return operator


def state(operator: Operator, key: str) -> str:
    """How a pool is."""
    pool = operator.manager.pool(key)
    return pool[0].state if pool else "gone"


def current(operator: Operator) -> int:
    """The revision that has the traffic."""
    return operator.store.catalog.resolve("digits").revision.number


async def stored(operator: Operator) -> list[int]:
    """The revisions in the store."""
    return sorted(one.revision.number for one in await operator.store.functions.load_all())


async def test_a_cold_function_moves_at_once(operator: Operator) -> None:
    """Nobody calls it, so nobody waits for the new revision."""
    await operator.deploy("digits")

    ended = await operator.deploy("digits", overrides=KNOWN)

    assert (ended.result["switch"], ended.result["revision"]) == ("digits@2 is cold", "digits@2")
    assert (current(operator), state(operator, NEW)) == (2, "cold")


async def test_a_warm_function_stays_warm(awake: Operator, gate: Gate) -> None:
    """The new revision is there without traffic until a replica of it is ready."""
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
    """Where the new settings keep a replica, it is there before the traffic is."""
    await operator.deploy("digits")

    ended = await operator.deploy("digits", overrides={**KNOWN, "min": 1})

    assert ended.result["switch"] == "warm before traffic moved"
    assert state(operator, NEW) == "warm"


async def test_a_replica_is_warmed_under_the_settings_that_come(awake: Operator) -> None:
    """A model that takes longer, deployed with a longer timeout, is not run with the old one."""
    await awake.deploy("digits", overrides={**KNOWN, "timeout_s": 7.0})

    assert awake.manager._bindings[NEW].spec.timeout_s == 7.0


async def test_without_room_for_both_the_traffic_moves_first(operator: Operator) -> None:
    """The old revision has every slot: it makes room, and the new one becomes warm all the same."""
    await operator.deploy("digits", overrides={"min": SLOTS, "max": SLOTS})
    await until(lambda: len(operator.manager.replicas()) == SLOTS)
    await until(lambda: state(operator, OLD) == "warm")

    ended = await operator.deploy("digits", overrides={**KNOWN, "max": SLOTS, "min": 0})

    assert ended.result["switch"] == "no room for both: digits@1 makes room, calls are held"
    assert current(operator) == 2
    await until(lambda: state(operator, NEW) == "warm")


async def test_what_does_not_become_ready_gets_no_traffic(tmp_path: Path) -> None:
    """The deploy fails with the reason and the last lines, and the revision is gone again."""
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
    """The waiting revision and its replica go; the traffic is where it was."""
    gate.shut()
    operation = await awake.start("digits", overrides=KNOWN)
    await until(lambda: gate.waiting == 1)

    ended = await awake.deploys.runner.cancel(operation.id)

    assert ended.state == "cancelled"
    gate.open()
    await until(lambda: state(awake, NEW) == "gone")
    assert (current(awake), await stored(awake)) == (1, [1])


async def test_a_server_that_dies_while_warming_is_followed_by_one_that_goes_on(
    tmp_path: Path,
) -> None:
    """The revision that waits is the one that gets the traffic: no second number is used."""
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


async def test_what_nobody_goes_on_with_is_taken_away(tmp_path: Path) -> None:
    """A revision whose operation ended without a word to the store does not stay for ever."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        old = operator.store.catalog.resolve("digits")
        bundle = operator.store.bundles[old.revision.bundle]
        await operator.store.traffic.stage(old.revision, bundle, nouns.profile(), "dead")

    async with operating(tmp_path) as operator:
        assert await stored(operator) == [1]
        assert operator.store.catalog.find("digits@2") is None


@pytest.mark.parametrize("breaking", [False, True])
async def test_callers_break_only_if_that_is_meant(tmp_path: Path, breaking: bool) -> None:
    """Refused with a list, before a number is used; allowed with --breaking."""
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


def test_what_fits_is_not_refused() -> None:
    """Nothing is raised for a revision that takes more, nor for one that is meant to break."""
    fixed, free = (nouns.revision(signature=each) for each in (FIXED, FREE))

    check_compatible(fixed, free, breaking=False)
    check_compatible(free, fixed, breaking=True)
    with pytest.raises(Incompatible):
        check_compatible(free, fixed, breaking=False)


async def test_an_operation_of_another_server_that_was_done_stays_done(tmp_path: Path) -> None:
    """A rollback whose server died after the switch is done, and goes no further back."""
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


@pytest.mark.slow  # room is looked for once a second
async def test_a_warm_function_that_made_room_for_the_trial_is_warm_again(
    awake: Operator,
) -> None:
    """All other slots are taken for good: the trial gets that of the old revision."""
    floor = {"min": SLOTS - 1, "max": SLOTS - 1}
    await awake.deploy("other", files={"m.onnx": MODEL * 2}, overrides=floor)
    kept = "default/other@1"
    await until(lambda: (pool := awake.manager.pool(kept)) and len(pool[0].replicas) == SLOTS - 1)
    await awake.manager.warm(OLD)

    ended = await awake.deploy("digits", files={"m.onnx": MODEL * 3})

    assert ended.result["switch"] == "warm before traffic moved"
    assert (state(awake, OLD), state(awake, NEW)) == ("cold", "warm")


KEY = "default/digits@1"


async def test_news_end_the_wait(tmp_path: Path) -> None:
    """The condition is looked at again when a pool has changed, and nobody listens afterwards."""
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
    """What does not come about is told."""
    async with operating(tmp_path) as operator:
        assert not await wait_until(operator.manager, lambda: False, 0)


def test_only_the_last_lines_count() -> None:
    """Bytes that are no UTF-8 do not hide the rest."""
    assert last_lines(b"a\nb\nc\xff\n", 2) == ["b", "c\ufffd"]
    assert last_lines(b"", 2) == []


async def test_the_newest_replica_is_asked(tmp_path: Path) -> None:
    """A function that never ran has no lines."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.manager.warm("default/digits@1")

        assert "starts for default/digits@1" in (await log_tail(operator.manager, "digits"))[0]
        assert await log_tail(operator.manager, "nobody") == []
