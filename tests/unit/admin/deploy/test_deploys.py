"""Tests of deploys as operations: phases, order, cancellation, restart."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from admin.deploy.deploys import CHECKED_MAX
from gateway.admission.access import Caller
from registry.errors import (
    BadBundle,
    Conflict,
    ModelRefused,
    QueueFull,
    Refused,
    StoreUnavailable,
    Unknown,
    UnknownFunction,
)
from registry.model.operations import Operation
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import UNTIL_S, Operator, locked, operating, until
from tests.support.server import Gate

ADMIN = Caller("", ("admin",))

OTHER = {"other.onnx": b"\x3a\x00\x3a\x00"}
REPLACED = {"m.onnx": b"\x3a\x00\x3a\x00"}


async def test_a_deploy_goes_through_its_phases(operator: Operator, gate: Gate) -> None:
    """A deploy is verified, then switched; its result has the revision and what was done."""
    gate.shut()
    operation = await operator.start("digits")
    assert operation.phase == "upload"
    assert (await operator.deploys.runner.wait(operation.id, "upload", 30)).phase == "verify"
    assert operator.store.catalog.find("digits") is None
    gate.open()

    ended = await operator.ended(operation.id)

    assert (ended.state, ended.phase) == ("done", "switch")
    assert (ended.result["revision"], ended.result["created"]) == ("digits@1", True)
    assert ended.result["profile"]["batch_max"] == 1
    assert ended.ended_s >= ended.created_s
    assert operator.store.catalog.resolve("digits").function.scaling.idle_s == 77
    assert await operator.store.operations.get(operation.id) == ended


async def test_changed_scaling_makes_no_revision(operator: Operator) -> None:
    """Only changed scaling is applied to the function: no verification, no new revision."""
    await operator.deploy("digits")

    again = await operator.deploy("digits", overrides={"min": 1, "idle_s": 9})

    assert (again.result["revision"], again.result["created"]) == ("digits@1", False)
    assert again.result["switch"] == "the same bundle and settings as digits@1"
    assert again.result["changed"] == ["scaling.min", "scaling.idle_s"]
    scaling = operator.store.catalog.resolve("digits").function.scaling
    assert (scaling.min, scaling.idle_s) == (1, 9)
    stored = await operator.store.functions.load_all()
    assert [one.function.scaling for one in stored] == [scaling]


@pytest.mark.parametrize("overrides", [{"batch_max": 4}, {"memory_mib": 64}, {"device": "cpu"}])
async def test_changed_revision_settings_make_a_new_revision(
    operator: Operator, overrides: dict[str, object]
) -> None:
    """Changed batching or device needs makes a verified new revision."""
    await operator.deploy("digits")

    again = await operator.deploy("digits", overrides=overrides)

    assert (again.result["revision"], again.result["created"]) == ("digits@2", True)
    assert operator.store.catalog.resolve("digits").revision.number == 2


async def test_a_refused_model_changes_nothing(tmp_path: Path) -> None:
    """A refused model fails the operation with the replica's reason; catalog and store are
    unchanged."""
    async with operating(tmp_path, FakeDriver(Script(refuse_load="opset 9999"))) as operator:
        ended = await operator.deploy("digits")

        assert (ended.state, ended.phase) == ("failed", "verify")
        assert (ended.error["code"], ended.error["detail"]) == ("model_refused", "opset 9999")
        assert ended.error["stage"] == "load"
        assert operator.store.catalog.all() == ()
        assert await operator.store.functions.load_all() == []


async def test_an_impossible_deploy_is_refused_without_an_operation(operator: Operator) -> None:
    """Missing files, a file that is not ONNX and an absent device are refused without an
    operation."""
    request = await operator.request()
    request.files[0].sha256 = "0" * 64
    with pytest.raises(BadBundle, match="1 files were not uploaded, first 0000"):
        await operator.deploys.start("digits", request, ADMIN)
    with pytest.raises(ModelRefused, match=r"m\.onnx is not an ONNX model"):
        await operator.start("digits", files={"m.onnx": b"\xff\xff"})
    with pytest.raises(Refused, match=r"device\.kind: expected any or cpu, got cuda"):
        await operator.start("digits", overrides={"device": "cuda"})

    assert await operator.deploys.runner.newest() == []


@pytest.mark.parametrize("content", [b"", b"\x3a\x01"], ids=["cut", "other bytes"])
async def test_a_damaged_file_does_not_stay(tmp_path: Path, content: bytes) -> None:
    """A blob damaged on disk fails its deploy and is removed, so that the next deploy uploads it;
    the blob of a refused model is kept."""
    async with operating(tmp_path, FakeDriver(Script(refuse_load="opset 9999"))) as operator:
        request = await operator.request()
        blob = operator.store.blobs.path(request.files[0].sha256)
        assert (await operator.deploy("digits")).error["code"] == "model_refused"
        assert blob.exists()
        blob.unlink()
        blob.write_bytes(content)

        with pytest.raises(BadBundle, match=r"1 files were not uploaded|m\.onnx: .* was damaged"):
            await operator.deploys.start("digits", request, ADMIN)

        assert not blob.exists()


async def test_deploys_of_one_name_are_done_in_order(operator: Operator, gate: Gate) -> None:
    """Deploys of one name run in order of acceptance; each has its own number and the last one gets
    the traffic."""
    gate.shut()
    first = await operator.start("digits")
    second = await operator.start("digits", files=OTHER)
    await operator.reached(first.id, "verify")
    assert (await operator.deploys.runner.get(second.id)).phase == "upload"
    gate.open()

    results = [(await operator.ended(one.id)).result["revision"] for one in (first, second)]

    assert results == ["digits@1", "digits@2"]
    assert operator.store.catalog.resolve("digits").revision.model == "other.onnx"


async def test_one_name_does_not_take_every_turn(operator: Operator, gate: Gate) -> None:
    """Waiting deploys of one name do not delay those of another name."""
    gate.shut()
    queued = [await operator.start("slow", overrides={"min": n}) for n in (0, 1, 1, 1, 1)]

    other = await operator.start("quick", party="b")

    await operator.reached(other.id, "verify")
    gate.open()
    assert [(await operator.ended(one.id)).state for one in (*queued, other)] == ["done"] * 6


async def test_a_derived_name_may_not_become_taken_meanwhile(
    operator: Operator, gate: Gate
) -> None:
    """Of two different models deployed under the same derived name, the second is refused."""
    gate.shut()
    first = await operator.start("digits", derived_name=True)
    second = await operator.start("digits", files=REPLACED, derived_name=True)
    gate.open()

    assert (await operator.ended(first.id)).state == "done"
    ended = await operator.ended(second.id)
    assert (ended.state, ended.error["code"]) == ("failed", "conflict")
    with pytest.raises(Conflict, match="pass --name to deploy to it"):
        await operator.start("digits", derived_name=True)


async def test_an_operation_is_done_when_every_gateway_knows(tmp_path: Path) -> None:
    """An operation is done only when every gateway process has the change, so that any of them can
    serve it."""
    asked: list[bool] = []
    known = asyncio.Event()

    async def settled() -> None:
        asked.append(operator.store.catalog.find("digits") is not None)
        await known.wait()

    async with operating(tmp_path, FakeDriver(), settled=settled) as operator:
        operation = await operator.start("digits")
        await until(lambda: bool(asked))
        assert (await operator.deploys.runner.get(operation.id)).state == "running"
        known.set()

        assert (await operator.ended(operation.id)).state == "done"
    assert asked == [True]


@pytest.mark.parametrize("loads", [False, True])
async def test_a_cancelled_deploy_changes_nothing(
    operator: Operator, gate: Gate, loads: bool
) -> None:
    """A deploy cancelled at once, or while its model loads, changes nothing and ends its trial
    replica."""
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


async def test_the_trials_of_one_key_leave_devices_to_others(
    operator: Operator, gate: Gate
) -> None:
    """With two devices the trials of one key run one after the other, however long they load; that
    of another key, and calls, find a device."""
    gate.shut()
    one = await operator.start("one", party="a")
    await operator.reached(one.id, "verify")
    other = await operator.start("other", party="a")
    await operator.reached(other.id, "queued")
    beside = await operator.start("beside", party="b")
    await operator.reached(beside.id, "verify")
    await until(lambda: gate.waiting == 2)

    assert (await operator.deploys.runner.get(other.id)).phase == "queued"
    gate.open()
    ended = [await operator.ended(each.id) for each in (one, other, beside)]
    assert [each.state for each in ended] == ["done"] * 3


async def test_a_waiting_deploy_can_be_cancelled(operator: Operator, gate: Gate) -> None:
    """Cancelling a waiting deploy does not affect the running one."""
    gate.shut()
    first = await operator.start("digits")
    second = await operator.start("digits", files=OTHER)

    assert (await operator.deploys.runner.cancel(second.id)).state == "cancelled"

    gate.open()
    assert (await operator.ended(first.id)).state == "done"


async def test_a_switch_that_began_is_not_torn_by_a_cancellation(
    tmp_path: Path, gate: Gate
) -> None:
    """A deploy cancelled during its switch is done, in store and memory alike."""
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
    """Cancelling an ended operation changes nothing; an unknown one is refused."""
    done = await operator.deploy("digits")

    assert await operator.deploys.runner.cancel(done.id) == done
    with pytest.raises(Unknown):
        await operator.deploys.runner.cancel("nothing")


async def test_a_locked_store_accepts_no_deploy(operator: Operator) -> None:
    """A deploy that cannot be stored is refused at once and does not run."""
    request = await operator.request()
    with locked(operator.store.settings.database), pytest.raises(StoreUnavailable):
        await operator.deploys.start("digits", request, ADMIN)

    assert await operator.deploys.runner.newest() == []
    assert (await operator.deploy("digits")).result["revision"] == "digits@1"


async def test_a_store_locked_at_the_switch_leaves_the_old_revision(tmp_path: Path) -> None:
    """With the store locked at the switch, the deploy fails; its end is reported at once and stored
    later."""
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


async def test_an_unfinished_operation_is_completed_after_a_restart(tmp_path: Path) -> None:
    """A deploy that was loading when its server ended is completed after the restart."""
    async with operating(tmp_path, FakeDriver(Script(hang_at="load"))) as operator:
        operation = await operator.start("digits", derived_name=True)
        await operator.reached(operation.id, "verify")

    async with operating(tmp_path) as operator:
        ended = await operator.ended(operation.id)

    assert (ended.state, ended.result["revision"]) == ("done", "digits@1")


async def test_removing_ends_the_deploys_that_run(operator: Operator, gate: Gate) -> None:
    """Removing a function cancels its running deploys."""
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
    """A deploy after a removal gets the next number: numbers are never reused."""
    await operator.deploy("digits")
    await operator.deploys.remove("digits")

    assert (await operator.deploy("digits")).result["revision"] == "digits@2"


async def test_a_long_poll_is_answered_when_the_server_stops(
    operator: Operator, gate: Gate
) -> None:
    """A shutdown answers a long poll at once; the operation stays running for the next server."""
    gate.shut()
    operation = await operator.start("digits")
    await operator.reached(operation.id, "verify")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(operator.deploys.runner.wait(operation.id, "verify", 600))
        await asyncio.sleep(0)
        await operator.deploys.runner.stop_waiting()

    assert waiting.result().state == "running"


async def test_a_wait_ends_with_its_time(operator: Operator, gate: Gate) -> None:
    """A wait that is over returns the operation unchanged."""
    gate.shut()
    operation = await operator.start("digits")
    await until(lambda: gate.waiting == 1)

    assert (await operator.deploys.runner.wait(operation.id, "verify", 0)).phase == "verify"


async def test_deploys_that_are_checked_are_shared(tmp_path: Path) -> None:
    """A key that asks for many deploys at once is refused above half of the places; the deploy of
    another key is checked meanwhile."""
    async with operating(tmp_path) as operator:
        request = await operator.request()
        start = partial(operator.deploys.start, request=request)
        one, two = (Caller(id, ("admin",)) for id in "ab")
        many = [start(f"a{number}", caller=one) for number in range(CHECKED_MAX // 2 + 1)]

        *found, other = await asyncio.gather(*many, start("b", caller=two), return_exceptions=True)

        assert isinstance(other, Operation)
        refused = [one for one in found if isinstance(one, QueueFull)]
        assert len(refused) == 1
        assert "deploy requests are being checked" in str(refused[0])
