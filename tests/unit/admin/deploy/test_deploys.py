"""Deploys as operations: their phases and their order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pool_manager.drivers.fake import FakeDriver, Script
from registry.errors import (
    BadBundle,
    Conflict,
    ModelRefused,
    Refused,
)
from tests.support.operator import Operator, operating, until
from tests.support.server import Gate

OTHER = {"other.onnx": b"\x3a\x00\x3a\x00"}
REPLACED = {"m.onnx": b"\x3a\x00\x3a\x00"}


async def test_a_deploy_goes_through_its_phases(operator: Operator, gate: Gate) -> None:
    """It is verified, then switched; the result names the revision and says what was done."""
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


async def test_the_same_again_changes_settings_but_makes_no_revision(operator: Operator) -> None:
    """Scaling belongs to the function: it is applied, nothing is verified, and nothing is new."""
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
async def test_what_a_revision_is_made_of_makes_a_new_one(
    operator: Operator, overrides: dict[str, object]
) -> None:
    """Batching and device belong to the revision: changed, they are verified and numbered."""
    await operator.deploy("digits")

    again = await operator.deploy("digits", overrides=overrides)

    assert (again.result["revision"], again.result["created"]) == ("digits@2", True)
    assert operator.store.catalog.resolve("digits").revision.number == 2


async def test_a_refused_model_changes_nothing(tmp_path: Path) -> None:
    """The operation fails with the replica's reason; catalog and store are as before."""
    async with operating(tmp_path, FakeDriver(Script(refuse_load="opset 9999"))) as operator:
        ended = await operator.deploy("digits")

        assert (ended.state, ended.phase) == ("failed", "verify")
        assert (ended.error["code"], ended.error["detail"]) == ("model_refused", "opset 9999")
        assert ended.error["stage"] == "load"
        assert operator.store.catalog.all() == ()
        assert await operator.store.functions.load_all() == []


async def test_what_cannot_be_deployed_is_refused_before_an_operation(operator: Operator) -> None:
    """Files that are not there, no ONNX file, a device nobody has: told at once."""
    request = await operator.request()
    request.files[0].sha256 = "0" * 64
    with pytest.raises(BadBundle, match="1 files were not uploaded, first 0000"):
        await operator.deploys.start("digits", request, id)
    with pytest.raises(ModelRefused, match=r"m\.onnx is not an ONNX model"):
        await operator.start("digits", files={"m.onnx": b"\xff\xff"})
    with pytest.raises(Refused, match=r"device\.kind: expected any or cpu, got cuda"):
        await operator.start("digits", overrides={"device": "cuda"})

    assert await operator.deploys.runner.newest() == []


@pytest.mark.parametrize("content", [b"", b"\x3a\x01"], ids=["cut", "other bytes"])
async def test_a_damaged_file_does_not_stay(tmp_path: Path, content: bytes) -> None:
    """A deploy that fails for a file which changed on the disk says so and removes it, so that
    the next one uploads it; a model that is refused for itself stays where it is."""
    async with operating(tmp_path, FakeDriver(Script(refuse_load="opset 9999"))) as operator:
        request = await operator.request()
        blob = operator.store.blobs.path(request.files[0].sha256)
        assert (await operator.deploy("digits")).error["code"] == "model_refused"
        assert blob.exists()
        blob.unlink()
        blob.write_bytes(content)

        with pytest.raises(BadBundle, match=r"1 files were not uploaded|m\.onnx: .* was damaged"):
            await operator.deploys.start("digits", request, id)

        assert not blob.exists()


async def test_deploys_of_one_name_are_done_in_order(operator: Operator, gate: Gate) -> None:
    """Each gets a number of its own, and the one that came last is what is called."""
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
    """However many deploys of one name wait, another name's deploy begins."""
    gate.shut()
    queued = [await operator.start("slow", overrides={"min": n}) for n in (0, 1, 1, 1, 1)]

    other = await operator.start("quick")

    await operator.reached(other.id, "verify")
    gate.open()
    assert [(await operator.ended(one.id)).state for one in (*queued, other)] == ["done"] * 6


async def test_a_derived_name_may_not_become_taken_meanwhile(
    operator: Operator, gate: Gate
) -> None:
    """Of two different models whose files have one name, the second does not replace the first."""
    gate.shut()
    first = await operator.start("digits", derived_name=True)
    second = await operator.start("digits", files=REPLACED, derived_name=True)
    gate.open()

    assert (await operator.ended(first.id)).state == "done"
    ended = await operator.ended(second.id)
    assert (ended.state, ended.error["code"]) == ("failed", "conflict")
    with pytest.raises(Conflict, match="say --name to mean it"):
        await operator.start("digits", derived_name=True)


async def test_an_operation_is_done_when_every_gateway_knows(tmp_path: Path) -> None:
    """Until then it is running: who sees it done may call what it has deployed anywhere."""
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
