"""The output of replicas: followed, and kept within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pool_manager.settings import PoolSettings
from tests.support.fake_driver.driver import FakeDriver
from tests.support.replicas import Stage, pool_settings

ID = "aaaa0001"


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(memory_mib=100) as made:
        yield made


@pytest.fixture
async def stage(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(settings, FakeDriver(), tmp_path)
    yield made
    await made.close()


async def test_logs_are_kept_bounded(stage: Stage) -> None:
    """Every live replica's log is cut when it has grown, also between two ticks."""
    await stage.ready(ID)
    [log] = stage.launcher.folders.logs("digits")
    kept = stage.launcher.output
    assert not await kept.bound()
    log.write_bytes(b"line\n" * 300_000)

    kept.tick()
    kept.tick()
    async with asyncio.timeout(60):
        await kept._bound_grown()

    assert log.stat().st_blocks * 512 < stage.settings.log_bytes
    assert not await kept.bound()


async def test_output_is_followed(stage: Stage) -> None:
    """A function is followed from its last lines, over new replicas, to the end of each."""
    await stage.ready(ID)
    async with stage.launcher.output.follow("digits", 1, "") as follow:
        [first] = await follow.read()
        cursor = follow.cursor
        await stage.release(ID)
        said = [await follow.read(), await follow.read()]

    assert first.replica == ID
    assert len(first.lines) == 1
    assert said[0][0].lines[-1] == f"fake replica {ID} was killed"
    assert said[1] == [(ID, [], True)]
    async with stage.launcher.output.follow("digits", 1, cursor) as follow:
        assert (await follow.read())[0].lines == said[0][0].lines


async def test_what_a_driver_keeps_is_fetched_once_at_a_time(stage: Stage) -> None:
    """Output is fetched once at a time, however many followers there are, and at most every
    SAVE_S."""
    await stage.ready(ID)
    kept = stage.launcher.output
    saved: list[str] = []

    async def save_log(id: str, _log: Path) -> None:
        saved.append(id)

    stage.driver.save_log = save_log  # type: ignore[method-assign]
    async with kept.follow("digits", 1, "") as one, kept.follow("digits", 1, "") as two:
        assert saved == [ID, ID]
        for follow in (one, two, one):
            await follow.read()

    assert saved == [ID, ID, ID]


async def test_logs_of_gone_functions_go(stage: Stage) -> None:
    """Logs of removed functions are removed, unless they are in use."""
    await stage.ready(ID)
    [log] = stage.launcher.folders.logs("digits")

    await stage.launcher.output.trim((), log.stat().st_mtime + 10_000)
    assert log.exists()
    await stage.release(ID)
    await stage.launcher.output.trim((), log.stat().st_mtime + 10_000)
    assert not log.exists()
