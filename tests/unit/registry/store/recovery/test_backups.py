"""Tests of the daily copies of the database, and of snapshots on request."""

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
    """Backups of a database with one key, and a clock that the test sets."""

    def __init__(self, settings: StoreSettings, database: Database) -> None:
        self.settings = settings
        self.keys = Keys(database)
        self.ahead_s = 0.0
        self.backups = Backups(settings, database, self.wall)

    def wall(self) -> float:
        """Return the filesystem's time plus `ahead_s`."""
        probe = self.settings.data / "probe"
        probe.touch()
        os.utime(probe)
        return probe.stat().st_mtime + self.ahead_s

    def keys_in(self, name: str) -> int:
        """Return the number of keys in the copy of that name, -1 if there is none."""
        report = inspect_database(self.settings.backups / name, is_checked=True)
        return report.keys if report.state == "sound" else -1

    def copies(self) -> tuple[int, int]:
        """Return the number of keys in the daily copy and in the previous one."""
        return self.keys_in(DAILY), self.keys_in(PREVIOUS)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = StoreSettings(tmp_path)
    database = await Database.open(settings.database)
    rig = Rig(settings, database)
    await rig.keys.add(["read"], now_s=1.0)
    yield rig
    await database.close()


async def test_one_copy_a_day_and_the_previous_one(rig: Rig) -> None:
    """The first copy is made at once, the next a day later; only two private files exist. A clock
    that was wrong does not prevent a copy."""
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


async def test_an_empty_store_is_not_copied(tmp_path: Path) -> None:
    """A store that never had content makes no copy, so that it replaces no good one."""
    database = await Database.open(tmp_path / "fngate.db")
    rig = Rig(StoreSettings(tmp_path), database)

    await rig.backups.copy_if_due()

    assert not rig.settings.backups.exists()
    await database.close()


async def test_a_failure_is_a_reason_until_a_copy_succeeds(rig: Rig) -> None:
    """A failed copy is logged and is a reason for /readyz with the age of the last copy; the next
    try is made."""
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


async def test_a_snapshot_on_request(rig: Rig, tmp_path: Path) -> None:
    """A snapshot is complete, already unlinked, and does not count as the daily copy."""
    file, size = await rig.backups.snapshot()

    with file:
        (tmp_path / "copy").write_bytes(file.read())
    assert (tmp_path / "copy").stat().st_size == size
    assert inspect_database(tmp_path / "copy", is_checked=True).keys == 1
    assert os.listdir(rig.settings.backups) == []


async def test_stopping_aborts_a_copy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopping server waits only until the copy's thread notices; later requests are refused."""
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
