"""The daily copies of the database, and copies for whoever asks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.errors import StoreUnavailable
from registry.settings import DAY_S, StoreSettings
from registry.store.database import Database
from registry.store.keys import Keys
from registry.store.recovery import backups as module
from registry.store.recovery.backups import Backups
from registry.store.recovery.folder import DAILY, PREVIOUS
from registry.store.recovery.inspection import inspect_database
from registry.tasks import Tasks


class Rig:
    """Backups of a database with one key, and a clock that is set by hand."""

    def __init__(self, settings: StoreSettings, database: Database) -> None:
        self.settings = settings
        self.keys = Keys(database)
        self.ahead_s = 0.0
        self.backups = Backups(settings, database, self.wall)

    def wall(self) -> float:
        """The time on the disk, `ahead_s` later."""
        probe = self.settings.data / "probe"
        probe.touch()
        os.utime(probe)
        return probe.stat().st_mtime + self.ahead_s

    def keys_in(self, name: str) -> int:
        """How many keys the copy of that name has, -1 where there is none."""
        report = inspect_database(self.settings.backups / name, is_checked=True)
        return report.keys if report.state == "sound" else -1

    def copies(self) -> tuple[int, int]:
        """Keys in the daily copy and in the one before."""
        return self.keys_in(DAILY), self.keys_in(PREVIOUS)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = StoreSettings(tmp_path)
    database = await Database.open(settings.database)
    rig = Rig(settings, database)
    await rig.keys.add(["read"], now_s=1.0)
    yield rig
    await database.close()


async def test_one_copy_a_day_and_the_one_before(rig: Rig) -> None:
    """The first comes at once, the next a day later; there are never more than two files, which
    nobody else may read. A clock that was wrong keeps no copy from being made."""
    await rig.backups.copy_if_due()
    assert rig.copies() == (1, -1)
    for day in (1, 2, -40):
        await rig.keys.add(["read"], now_s=1.0)
        rig.ahead_s = day * DAY_S - 60
        await rig.backups.copy_if_due()
        if day > 0:
            assert rig.copies()[0] == 1 + (day - 1)
        rig.ahead_s = day * DAY_S + 60
        await rig.backups.copy_if_due()
        os.utime(rig.settings.backups / DAILY, (rig.wall(), rig.wall()))

    assert rig.copies() == (4, 4)
    assert sorted(os.listdir(rig.settings.backups)) == [DAILY, PREVIOUS]
    assert rig.settings.backups.stat().st_mode & 0o777 == 0o700
    assert (rig.settings.backups / DAILY).stat().st_mode & 0o777 == 0o600


async def test_nothing_is_no_copy(tmp_path: Path) -> None:
    """A store that never had anything makes none, and so takes no good copy's place."""
    database = await Database.open(tmp_path / "fngate.db")
    rig = Rig(StoreSettings(tmp_path), database)

    await rig.backups.copy_if_due()

    assert not rig.settings.backups.exists()
    await database.close()


async def test_a_failure_is_a_reason_until_a_copy_succeeds(rig: Rig) -> None:
    """It is logged, /readyz tells it with the age of the last copy, and the next try goes on."""
    rig.settings.backups.write_text("in the way")

    with capture_logs() as logs:
        await rig.backups.copy_if_due()

    assert [line["event"] for line in logs] == ["the daily copy of the database failed"]
    (reason,) = rig.backups.reasons()
    assert reason.startswith("backup: the daily copy of the database failed: disk error: ")
    assert reason.endswith("; there is none")

    rig.settings.backups.unlink()
    await rig.backups.copy_if_due()
    assert (rig.backups.reasons(), rig.copies()) == ([], (1, -1))
    rig.ahead_s = 2 * DAY_S
    (rig.settings.backups / f".{DAILY}.next").mkdir()
    await rig.backups.copy_if_due()
    assert "; the last one is of 20" in rig.backups.reasons()[0]


async def test_a_copy_for_whoever_asks(rig: Rig, tmp_path: Path) -> None:
    """It is whole, has no name any more when it is given, and is no daily copy."""
    file, size = await rig.backups.snapshot()

    with file:
        (tmp_path / "copy").write_bytes(file.read())
    assert (tmp_path / "copy").stat().st_size == size
    assert inspect_database(tmp_path / "copy", is_checked=True).keys == 1
    assert os.listdir(rig.settings.backups) == []


async def test_the_end_gives_up_a_copy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops waits for the copy's thread only until that sees it; one who asks then
    is refused."""
    began, real = threading.Event(), module.copy_database

    def slow(*args: object, is_stopped: object, **named: object) -> object:
        began.set()
        while not is_stopped():  # type: ignore[operator]
            pass
        return real(*args, is_stopped=is_stopped, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "copy_database", slow)
    tasks = Tasks("test")

    async with rig.backups.running(tasks):
        await asyncio.to_thread(began.wait)
    with pytest.raises(StoreUnavailable, match="the server is stopping"):
        await rig.backups.snapshot()

    assert rig.copies() == (-1, -1)
    assert rig.backups.reasons() == []
    await tasks.close()
