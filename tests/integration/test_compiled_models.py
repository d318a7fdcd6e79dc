"""Compiled models of real replicas: built, used by one that serves, and by the next one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.data_links import Delivered
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from pool_manager.core.state import PoolSpec
from pool_manager.devices import cpu_slots
from pool_manager.drivers.process import ProcessDriver
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from registry.errors import BuildGivenUp
from runtime_image.contract.compiled import BuildOrder, ShapeRange
from runtime_image.contract.model import ModelSpec
from tests.support import models
from tests.support.builds import LOCAL_CPU, compiled_of
from tests.support.operator import until
from tests.support.other_hosts import Recorder
from tests.support.peers import Client, KnownPast
from tests.support.replicas import KEY, ROW, ModelFolder, pool_settings

ORDER = BuildOrder("onnxruntime", (ShapeRange("x", (1, 4), (4, 4), (8, 4)),), 0.01)
SPEC = ModelSpec("digits@1", model="add_one.onnx")
CALLS = 8
UNTIL_S = 60.0


@pytest.mark.slow
async def test_a_serving_replica_is_upgraded_without_a_failed_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls go on during the upgrade; a hostile change of the files is noticed at the next start,
    which serves with the ordinary session."""
    models.add_one(tmp_path)
    files = ModelFolder(tmp_path)
    bound = Binding(SPEC, files.bundle(), "default", "digits", 1)
    spec = PoolSpec(KEY, function=KEY[:-2], memory_mib=100.0)
    reasons: list[str] = []
    with pool_settings(tick_s=0.05) as settings:
        driver = ProcessDriver(settings.run_dir)
        manager = Manager(settings, driver, cpu_slots(2), files, Recorder())
        manager.subscribe_not_compiled(lambda _key, _type, reason: reasons.append(reason))
        delivery = Delivery(Limits(), "worker", manager, KnownPast())
        manager.subscribe(delivery.receive_endpoints)
        await manager.start()
        delivery.open()
        try:
            manager.define(spec, bound)
            await manager.warm(KEY)
            built = await manager.build(spec, replace(bound, spec=replace(SPEC, build=ORDER)))
            compiled = compiled_of(built)
            manager.define(spec, replace(bound, variants={LOCAL_CPU: compiled}))
            stop = asyncio.Event()
            calling = [asyncio.ensure_future(_call_until(delivery, stop)) for _ in range(CALLS)]
            results = await manager.upgrade(KEY, compiled)
            stop.set()
            counts = await asyncio.gather(*calling)

            assert list(results.values()) == [{"session": "compiled", "reason": ""}]
            assert min(counts) > 0
            await _start_again(manager)
            assert [one.session for one in manager.replicas() if one.pool == KEY] == ["compiled"]
            assert reasons == []

            path = files.path(built.files[0].sha256)
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"x")
            monkeypatch.setattr(files, "path", lambda _sha256: path)
            await _start_again(manager)
            assert await _call(delivery)
            assert [one.session for one in manager.replicas() if one.pool == KEY] != ["compiled"]
            assert len(reasons) == 1
        finally:
            await delivery.close()
            await manager.close()


@pytest.mark.slow
async def test_a_build_is_killed_for_a_call(tmp_path: Path) -> None:
    """In the middle of its compilation; the caller waits for the end of a process alone."""
    models.add_one(tmp_path)
    files = ModelFolder(tmp_path)
    bound = Binding(SPEC, files.bundle(), "default", "digits", 1)
    order = replace(ORDER, delay_s=600.0)
    with pool_settings(tick_s=0.05) as settings:
        driver = ProcessDriver(settings.run_dir)
        manager = Manager(settings, driver, cpu_slots(1), files, Recorder())
        await manager.start()
        try:
            manager.define(PoolSpec(KEY), bound)
            ordered = replace(bound, spec=replace(SPEC, build=order))
            building = asyncio.ensure_future(manager.build(PoolSpec(KEY), ordered))
            await until(lambda: any(one.state == "loading" for one in manager.replicas()))
            warmed = await manager.warm(KEY)

            assert warmed.outcome == "ready"
            with pytest.raises(BuildGivenUp, match=f"its place is needed for {KEY}"):
                await building
        finally:
            await manager.close()


async def _start_again(manager: Manager) -> None:
    manager.unload(KEY)
    await until(lambda: not [one for one in manager.replicas() if one.pool == KEY])
    warmed = await manager.warm(KEY)
    assert warmed.outcome == "ready", warmed


async def _call_until(delivery: Delivery, stop: asyncio.Event) -> int:
    """Call until `stop`; return the number of calls."""
    count = 0
    while not stop.is_set() or not count:
        assert await _call(delivery)
        count += 1
    return count


async def _call(delivery: Delivery) -> bool:
    client = Client()
    delivery.submit(client.call(ROW, pool=KEY))
    outcome = await asyncio.wait_for(client.outcomes.get(), UNTIL_S)
    assert isinstance(outcome, Delivered), outcome
    return b"2.0" in bytes(outcome.body)
