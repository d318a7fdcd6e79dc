"""Adoption of an earlier manager's replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.replicas.adoption import adopt_all
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown
from runtime_image.contract.control import RECORD_FILE
from runtime_image.contract.link import SPOKEN, VERSION
from tests.support.fake_driver.driver import FakeDriver
from tests.support.replicas import KEY, Stage, pool_settings

ID, STANDBY, STRANGER = "aaaa0001", "aaaa0002", "dead0001"
RECORD_9 = """{"id": "aaaa0001", "token": "secret", "role": "serve", "namespace": "default",
 "bound": "default/digits@1", "model_dir": "/models/aaaa0001", "device": "cpu:0",
 "device_kind": "cpu", "engine": "onnx", "threads": 1, "orphan_s": 60.0, "memory_mib": 0,
 "launched_s": 12.5, "link": 9, "phases": {"place": 1.5}, "host": "local", "control": "",
 "data": "", "greeting": ""}"""
"""A record as a server with link version 9 wrote it."""


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings() as made:
        yield made


@pytest.fixture
async def stage(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(settings, FakeDriver(), tmp_path)
    yield made
    await made.close()


async def adopt(stage: Stage) -> list[events.Event]:
    """Return the events that the machine gets."""
    told: list[events.Event] = []
    await adopt_all(stage.fleet, stage.launcher, told.append)
    return sorted(told, key=str)


async def test_what_runs_and_has_a_record_is_adopted(stage: Stage) -> None:
    """Running replicas with a record are adopted with their pools, standbys without one, and their
    links are opened."""
    await stage.ready(ID)
    await stage.standby(STANDBY)
    for id in (ID, STANDBY):
        stage.launcher._close_control(id)

    told = await adopt(stage)

    assert told == [
        events.Found(ID, KEY, ("cpu:0",), "serve"),
        events.Found(STANDBY, "", (), "standby"),
    ]
    assert stage.launcher.control(ID) is not None
    assert [log.stem for log in stage.launcher.folders.logs("digits")] == [ID]


async def test_a_replica_of_the_link_version_before_is_adopted(
    stage: Stage, settings: PoolSettings
) -> None:
    """The record that a server with link version 9 wrote is read, kept by later ones, and gateways
    greet the replica by its own version."""
    await stage.ready(ID)
    stage.launcher._close_control(ID)
    (settings.run_dir / ID / RECORD_FILE).write_text(RECORD_9)

    assert await adopt(stage) == [events.Found(ID, KEY, ("cpu:0",), "serve")]
    assert stage.launcher.located(ID).link == 9
    record = stage.launcher.folders.read_records()[ID]
    assert record is not None
    stage.launcher.folders.rewrite(record)
    assert stage.launcher.folders.read_records()[ID] == record


@pytest.mark.parametrize("link", [SPOKEN[0] - 1, VERSION + 1, "9"])
async def test_what_speaks_another_link_version_is_released(stage: Stage, link: Any) -> None:
    """A replica of another link version is released, since it may serve by older rules."""
    await stage.ready(ID)
    stage.launcher._close_control(ID)
    record = stage.launcher.folders.read_records()[ID]
    assert record is not None
    stage.launcher.folders.rewrite(replace(record, link=link))

    assert await adopt(stage) == []
    assert await stage.driver.list() == set()
    assert stage.launcher.folders.read_records() == {}


async def test_what_does_not_run_is_removed(stage: Stage, settings: PoolSettings) -> None:
    """Folders of replicas that do not run, and stale model folders, are removed."""
    for folder in (settings.run_dir / STRANGER, settings.model_dir / STRANGER):
        folder.mkdir(parents=True)
    (settings.model_dir / "dead0002").mkdir()

    assert await adopt(stage) == []
    assert list(settings.run_dir.iterdir()) == list(settings.model_dir.iterdir()) == []


async def test_what_cannot_be_removed_stops_no_server(
    stage: Stage, settings: PoolSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that cannot be removed is left to the next server and keeps its id, even without a
    run folder. An engine that is away raises."""

    async def only_stranger() -> set[str]:
        return {STRANGER}

    monkeypatch.setattr(stage.driver, "list", only_stranger)
    errors = [DriverError("survives KILL"), EngineDown("away")]

    async def fail(id: str) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(stage.driver, "release", fail)
    await adopt(stage)
    assert (settings.run_dir / STRANGER).is_dir()
    with pytest.raises(EngineDown):
        await adopt(stage)

    assert [folder.name for folder in settings.run_dir.iterdir()] == [STRANGER]
