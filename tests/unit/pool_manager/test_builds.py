"""Builds through the manager, and compiled models that its replicas get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.builds import SUFFIX, Built, RunningBuild
from pool_manager.core.state import PoolSpec, State
from pool_manager.devices import cpu_slots
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from pool_manager.settings import PoolSettings
from registry.builds import DeviceType
from registry.errors import BuildFailed, BuildGivenUp, Conflict, ShuttingDown
from registry.exchange import Demand, Load, encode
from runtime_image.contract.compiled import BuildOrder, ShapeRange
from runtime_image.contract.model import ModelSpec
from tests.support.builds import LOCAL_CPU, compiled_of
from tests.support.fake_driver.build import KEY as FAKE_KEY
from tests.support.fake_driver.driver import BEHAVES, FakeDriver, Script
from tests.support.operator import until
from tests.support.replicas import KEY, ModelFolder, binding, pool_settings
from tests.unit.pool_manager.test_manager import Records

ORDER = BuildOrder("onnxruntime", (ShapeRange("x", (1, 4), (4, 4), (8, 4)),), 0.01)
SPEC = ModelSpec("digits@1", model="add_one.onnx")
UNTIL_S = 20.0
FULL = "No space left on device"


class Rig:
    """A manager with one device. The delays of fake replicas end when `go` is set."""

    def __init__(self, settings: PoolSettings, models: Path, script: Script) -> None:
        self.go = asyncio.Event()
        self.models = ModelFolder(models)
        self.waiting = 0
        driver = FakeDriver(script, sleep=self._sleep)
        self.manager = Manager(settings, driver, cpu_slots(1), self.models, Records())
        self.refusals: list[tuple[str, DeviceType, str]] = []
        self.manager.subscribe_not_compiled(lambda *found: self.refusals.append(found))
        self._seq = 0

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            self.waiting += 1
            await self.go.wait()

    def define(self, bound: Binding | None = None) -> None:
        """Define the revision's pool."""
        self.manager.define(PoolSpec(KEY), bound or binding(SPEC))

    def call(self, queued: int = 1) -> None:
        """Report waiting calls of the revision."""
        self._seq += 1
        load = {KEY: Load(queued, 0, 0.0)}
        self.manager.receive_demand(encode(Demand("w", self._seq, True, load)))

    async def warm(self) -> str:
        """Get a replica ready; return its id."""
        outcome = await self.manager.warm(KEY)
        assert outcome.outcome == "ready", outcome
        return self.replica().id

    def replica(self, pool: str = KEY) -> Any:
        """Return the only replica of a pool."""
        (found,) = [one for one in self.manager.replicas() if one.pool == pool]
        return found

    async def built(self) -> Built:
        """Build the revision's model."""
        async with asyncio.timeout(UNTIL_S):
            return await self.manager.build(PoolSpec(KEY, memory_mib=50.0), build_binding())

    def compiled(self, built: Built) -> Binding:
        """Return the binding of the revision with a compiled model."""
        return replace(binding(SPEC), variants={LOCAL_CPU: compiled_of(built)})


def build_binding() -> Binding:
    """Return the binding of a build. The bundle's size bounds that of its files."""
    return binding(replace(SPEC, build=ORDER))


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(tick_s=0.01) as made:
        yield made


@pytest.fixture
async def rig(
    request: pytest.FixtureRequest, settings: PoolSettings, tmp_path: Path
) -> AsyncIterator[Rig]:
    """Started; with the script given as the fixture's parameter."""
    made = Rig(settings, tmp_path, getattr(request, "param", BEHAVES))
    await made.manager.start()
    made.call(0)
    yield made
    made.go.set()
    await made.manager.close()


SLOW = pytest.mark.parametrize("rig", [Script(build_s=60.0)], indirect=True)


@SLOW
async def test_a_build_is_shown_while_it_runs_and_returns_stored_files(rig: Rig) -> None:
    """Files have the names of the description below the folder of compiled files."""
    rig.define()
    building = asyncio.ensure_future(rig.built())
    await until(lambda: rig.waiting == 1)
    (shown,) = rig.manager.builds()
    replica = rig.replica(KEY + SUFFIX)
    rig.go.set()
    built = await building

    assert shown == RunningBuild(KEY, shown.begun_s, replica.id, "cpu:0", "local", "")
    assert [file.path for file in built.files] == [
        ".compiled/model_ctx.onnx",
        ".compiled/timing.cache",
    ]
    assert rig.models.path(built.files[0].sha256).read_bytes() == b"digits@1 compiled"
    assert (built.compiled.key, built.device) == (FAKE_KEY, "cpu:0")
    assert built.described.get("compiled_ms") == {"1": 1.0}
    assert rig.manager.builds() == []
    await until(lambda: rig.manager.replicas() == [])
    assert rig.manager.counters.counts().starts == {("build", "ready"): 1}
    assert rig.manager.counters.supplied() == []


@SLOW
async def test_a_call_ends_a_build(rig: Rig) -> None:
    """The caller gets the only device; the error of the build names the function that got it."""
    rig.define()
    building = asyncio.ensure_future(rig.built())
    await until(lambda: rig.waiting == 1)
    rig.call()
    with pytest.raises(BuildGivenUp, match=f"its place is needed for {KEY}"):
        await building

    await until(lambda: rig.manager.pool(KEY)[0].state == "warm")  # type: ignore[index]
    counts = rig.manager.counters.counts()
    assert counts.starts["build", "dropped"] == 1
    assert counts.evictions == {}


@SLOW
async def test_a_build_waits_for_a_device_and_can_be_cancelled(rig: Rig) -> None:
    """The only CPU slot is a called function's. Nothing of the build is left, and another one may
    begin."""
    rig.define()
    await rig.warm()
    rig.manager.receive_demand(encode(Demand("w", 1, True, {KEY: Load(0, 1, 0.0)})))
    building = asyncio.ensure_future(rig.built())
    await until(lambda: rig.manager.builds() != [])
    with pytest.raises(Conflict, match="is in progress"):
        await rig.built()
    await until(lambda: "no free device" in rig.manager.builds()[0].waits_for)
    building.cancel()
    await asyncio.wait([building])

    assert rig.manager.builds() == []
    assert rig.manager.pool(KEY + SUFFIX) is None


@SLOW
async def test_a_shutdown_ends_builds(rig: Rig) -> None:
    """Those that run and those to come."""
    building = asyncio.ensure_future(rig.built())
    await until(lambda: rig.waiting == 1)
    await rig.manager.close()

    with pytest.raises(ShuttingDown):
        await building
    with pytest.raises(ShuttingDown):
        await rig.built()


@pytest.mark.parametrize(
    ("rig", "error", "reason"),
    [
        (Script(refuse_build="output y differs by 0.5"), BuildFailed, "output y differs by 0.5"),
        (Script(refuse_build="std::bad_alloc"), BuildGivenUp, "std::bad_alloc"),
        (Script(refuse_build=f"{FULL}: x"), BuildGivenUp, FULL),
        (Script(refuse_load="no such operator"), BuildFailed, "no such operator"),
        (Script(crash_at="load"), BuildFailed, "crashed"),
        (Script(crash_at="build"), BuildFailed, "crashed"),
    ],
    indirect=["rig"],
)
async def test_the_reason_of_a_failure_is_reported(
    rig: Rig, error: type[Exception], reason: str
) -> None:
    """A build for which memory or disk did not suffice may succeed another time."""
    with pytest.raises(error, match=reason):
        await rig.built()

    assert [path.name for path in rig.models._folder.iterdir()] == []


async def test_a_ready_replica_is_upgraded_and_the_next_one_starts_compiled(rig: Rig) -> None:
    """Files are linked before the replica is upgraded, and for each later one: those that a
    session reads, without the compiler's measurements."""
    built = await rig.built()
    rig.define()
    id = await rig.warm()
    rig.define(rig.compiled(built))

    results = await rig.manager.upgrade(KEY, compiled_of(built))

    assert results == {id: {"session": "compiled", "reason": ""}}
    folder = rig.manager._settings.model_dir / id / ".compiled"
    assert [path.name for path in folder.iterdir()] == ["model_ctx.onnx"]
    assert rig.replica().session == "compiled"
    rig.manager.unload(KEY)
    await until(lambda: rig.manager.replicas() == [])
    again = await rig.warm()
    assert (rig.replica().session, rig.refusals) == ("compiled", [])
    folder = rig.manager._settings.model_dir / again / ".compiled"
    assert [path.name for path in folder.iterdir()] == ["model_ctx.onnx"]


@pytest.mark.parametrize("rig", [Script(load_s=60.0)], indirect=True)
async def test_a_replica_that_loaded_before_is_upgraded_by_itself(rig: Rig) -> None:
    """It got its model while the compiled one was being stored."""
    rig.go.set()
    built = await rig.built()
    rig.go.clear()
    rig.waiting = 0
    rig.define()
    warming = asyncio.ensure_future(rig.warm())
    await until(lambda: rig.waiting == 1)
    assert rig.replica().state is State.LOADING
    rig.define(rig.compiled(built))
    rig.go.set()
    await warming

    await until(lambda: rig.replica().session == "compiled")


@pytest.mark.parametrize("rig", [Script(refuse_compiled="another key: x")], indirect=True)
async def test_a_compiled_model_that_is_not_used_is_reported(rig: Rig) -> None:
    """After a load and after an upgrade, with the reason; the replica serves all the same."""
    built = await rig.built()
    rig.define(rig.compiled(built))
    id = await rig.warm()
    results = await rig.manager.upgrade(KEY, compiled_of(built))

    assert results == {id: {"session": "original", "reason": "another key: x"}}
    assert rig.refusals == [(KEY, LOCAL_CPU, "another key: x")] * 2


async def test_a_compiled_model_for_other_devices_is_not_given(rig: Rig) -> None:
    """Neither at a start nor later, whatever its key."""
    built, other = await rig.built(), DeviceType("local", "NVIDIA")
    found = compiled_of(built, other)
    rig.define(replace(binding(SPEC), variants={other: found}))
    await rig.warm()

    assert await rig.manager.upgrade(KEY, found) == {}
    assert rig.replica().session != "compiled"
    assert rig.refusals == []
    assert [one.type for one in rig.manager.suitable(KEY)] == [LOCAL_CPU]
    assert rig.manager.suitable("default/unknown@1") == []


async def test_a_replica_without_room_for_both_sessions_serves_on(rig: Rig) -> None:
    """It is not asked, says why, and the next replica starts with the compiled model."""
    built = await rig.built()
    rig.define()
    id = await rig.warm()
    cluster = rig.manager._machine.cluster
    size_mib = 256.0 + 1.5 * cluster.ledger.charge_of(id).memory_mib
    cluster.ledger.add_devices([replace(cluster.ledger.devices["cpu:0"], memory_mib=size_mib)])
    rig.define(rig.compiled(built))

    results = await rig.manager.upgrade(KEY, compiled_of(built))

    assert "at its next start" in results[id]["reason"]
    assert rig.replica().session != "compiled"
    rig.manager.unload(KEY)
    await until(lambda: rig.manager.replicas() == [])
    await rig.warm()
    assert rig.replica().session == "compiled"


async def test_missing_files_are_reported_and_harmless(rig: Rig) -> None:
    """Of an upgrade they are the outcome; a start goes without them."""
    built = await rig.built()
    rig.models.path(built.files[0].sha256).unlink()
    rig.define(rig.compiled(built))
    id = await rig.warm()

    results = await rig.manager.upgrade(KEY, compiled_of(built))

    assert results[id]["session"] == ""
    assert "is missing" in results[id]["reason"]
    assert rig.replica().state is State.READY
