"""Tests of data folders without their database: refused, restored or started empty."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import sqlite3
import stat
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from registry.bundles.blobs import BlobStore
from registry.errors import BadRequest, StoreUnavailable
from registry.openness import CLOSED, Decision, Openness
from registry.settings import StoreSettings
from registry.spec import profile_engine
from registry.store.database import MIGRATIONS, Database
from registry.store.functions import Functions
from registry.store.keys import Keys
from registry.store.openness import OpennessStore
from registry.store.recovery.copying import copy_database
from registry.store.recovery.folder import DAILY, SPARED_S, check_folder, enter
from registry.store.recovery.restoring import EPOCHS, remove_partial, restore, start_empty
from registry.store.sealing import KeyFile
from registry.store.secrets import SecretStore
from runtime_image.contract.precision import Optimisation
from tests.support import stored
from tests.support.nouns import bundle, function, optimised, profile, revision, sha256

NOW_S = 1_700_000_000.0


@dataclass
class Used:
    """Data folder that a server has used: one function, one key, one blob."""

    settings: StoreSettings
    secret: str
    copy: Path


async def live(settings: StoreSettings, name: str = "digits") -> str:
    """Run a server once: deploy a function, add a key and return its secret."""
    database = await Database.open(settings.database)
    await enter(database, settings, NOW_S)
    async with BlobStore(settings.blobs, 1000).receive(sha256(b"model"), 5) as upload:
        await upload.write(b"model")
    await Functions(database).deploy(function(name, 0), revision(name, 0), bundle(), profile())
    _, secret = await Keys(database).add(["invoke"], now_s=NOW_S)
    await database.close()
    return secret


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder with a daily copy from before the server's last run, and the secret of its first key;
    made once, as each run of a server waits for the disk a dozen times."""
    settings = StoreSettings(tmp_path_factory.mktemp("lived"))
    settings.backups.mkdir(parents=True)
    secret = asyncio.run(live(settings))
    copy_database(settings.database, settings.backups / DAILY)
    asyncio.run(live(settings, "later"))
    return settings.data, secret


@pytest.fixture
def used(tmp_path: Path, lived: tuple[Path, str]) -> Used:
    """A copy of that folder, of the test alone."""
    origin, secret = lived
    settings = StoreSettings(tmp_path / "data")
    shutil.copytree(origin, settings.data)
    return Used(settings, secret, settings.backups / DAILY)


async def test_a_restored_database_without_its_key_names_its_secrets(used: Used) -> None:
    """Neither copies nor set-aside folders have the key. With the key in place nothing is named."""
    settings = used.settings
    database = await Database.open(settings.database)
    await SecretStore(database, KeyFile.of(settings)).set("hf", "s3cret", now_s=NOW_S)
    await database.close()
    copy_database(settings.database, used.copy)

    with_key = await restore(settings, used.copy, NOW_S)
    settings.secret_key.unlink()
    without = await restore(settings, used.copy, NOW_S)

    assert (with_key.unreadable, without.unreadable) == ((), ("hf",))
    assert list(settings.data.rglob("*.key")) == []
    assert b"s3cret" not in used.copy.read_bytes()


async def test_a_restore_sets_the_authority_of_links_aside(used: Used) -> None:
    """Replicas of the replaced store cannot dial in to the restored one; nobody else can read the
    old key, which can be put back with its database."""
    settings = used.settings
    settings.link.mkdir(mode=0o700)
    (settings.link / "authority.pem").write_text("key")
    copy_database(settings.database, used.copy)

    found = await restore(settings, used.copy, NOW_S)

    assert not settings.link.exists()
    assert found.folder is not None
    assert (found.folder / "link" / "authority.pem").read_text() == "key"
    for folder in (settings.set_aside, found.folder / "link"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def names(settings: StoreSettings) -> set[str]:
    """Return the functions that a server finds in this folder; raise if it refuses the folder."""
    check_folder(settings)
    database = await Database.open(settings.database)
    try:
        await enter(database, settings, NOW_S)
        return {one.function.name for one in await Functions(database).load_all()}
    finally:
        await database.close()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file except SQLite's shared memory."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


def script(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)


def replace(settings: StoreSettings, make: Callable[[Path], object]) -> None:
    settings.database.unlink()
    make(settings.database)


def crash(settings: StoreSettings, loses_log: bool) -> None:
    """Kill a server after a write; optionally remove its write-ahead log."""

    async def run() -> None:
        database = await Database.open(settings.database)
        await enter(database, settings, NOW_S)
        await Keys(database).add(["read"], now_s=NOW_S)
        for name in ("fngate.db", "fngate.db-wal"):
            shutil.copy(settings.data / name, settings.data / f"{name}.kept")
        await database.close()
        for name in ("fngate.db", "fngate.db-wal"):
            (settings.data / f"{name}.kept").rename(settings.data / name)
        if loses_log:
            settings.database.with_name("fngate.db-wal").unlink()

    asyncio.run(run())


def other_folder(settings: StoreSettings) -> None:
    other = StoreSettings(settings.data.parent / "other")
    other.data.mkdir()
    asyncio.run(live(other))
    replace(settings, lambda path: shutil.copy(other.database, path))


def new_database(path: Path) -> None:
    async def run() -> None:
        await (await Database.open(path)).close()

    asyncio.run(run())


def of_an_earlier_release(path: Path) -> None:
    async def run() -> None:
        await (await Database.open(path, migrations=MIGRATIONS[:4])).close()

    asyncio.run(run())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 4096 // 2 * 4096)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def damage_after_crash(settings: StoreSettings) -> None:
    crash(settings, loses_log=False)
    overwrite(settings.database, 3 * 4096, b"\xff" * 4096)


def leave_log_alone(settings: StoreSettings) -> None:
    crash(settings, loses_log=False)
    settings.database.unlink()
    settings.marker.unlink()


DAMAGES: dict[str, tuple[Callable[[StoreSettings], object], str]] = {
    "missing": (lambda s: s.database.unlink(), "it is missing, though this folder has been in use"),
    "missing, and the marker too": (
        lambda s: (s.database.unlink(), s.marker.unlink()),
        "it is missing, though",
    ),
    "no bytes": (lambda s: os.truncate(s.database, 0), "it is empty, though"),
    "no tables": (
        lambda s: replace(s, lambda p: script(p, "CREATE TABLE t (a); DROP TABLE t;")),
        "it is empty, though",
    ),
    "cut in half": (lambda s: cut(s.database), "it is damaged: "),
    "bad header": (
        lambda s: overwrite(s.database, 0, b"\0" * 100),
        "it is damaged: it does not begin as",
    ),
    "bad page after a crash": (damage_after_crash, "it is damaged: "),
    "another program's": (
        lambda s: replace(s, lambda p: script(p, "CREATE TABLE t (a);")),
        "it is foreign: its tables (t, ...) are not fngate's",
    ),
    "a new one": (lambda s: replace(s, new_database), "it belongs to another data folder"),
    "a new one, and no marker": (
        lambda s: (replace(s, new_database), s.marker.unlink()),
        "it is blank, though there are files of functions",
    ),
    "an earlier release's": (
        lambda s: replace(s, of_an_earlier_release),
        "it is older than this folder: an earlier release",
    ),
    "another folder's": (other_folder, "it belongs to another data folder"),
    "an older copy": (
        lambda s: replace(s, lambda p: shutil.copy(s.backups / DAILY, p)),
        "it lacks what was written last",
    ),
    "its log removed": (lambda s: crash(s, loses_log=True), "it lacks what was written last"),
    "only its log left": (leave_log_alone, "it is missing, though"),
}


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
async def test_a_folder_without_its_database_is_refused(
    used: Used, damage: Callable[[StoreSettings], object], text: str
) -> None:
    """The refusal gives the reason and two ways out, and changes nothing; both ways work and set
    the old files aside."""
    settings = used.settings
    await asyncio.to_thread(damage, settings)
    before = contents(settings.data)

    with pytest.raises(StoreUnavailable) as refused:
        check_folder(settings)

    assert f"the database {settings.database} cannot be used: {text}" in refused.value.message
    assert f"fnctl restore {used.copy} --data {settings.data}    (of " in refused.value.message
    assert f"fnctl serve --data {settings.data} --start-empty" in refused.value.message
    assert contents(settings.data) == before
    shutil.copytree(settings.data, settings.data.parent / "again")
    again = StoreSettings(settings.data.parent / "again")

    restored = await restore(settings, used.copy, NOW_S)
    assert (restored.functions, restored.keys, restored.missing) == (1, 1, 0)
    assert await names(settings) == {"digits"}

    emptied = await start_empty(again, NOW_S)
    assert emptied is not None
    assert await names(again) == set()
    assert not again.blobs.exists()
    assert (emptied / "blobs" / sha256(b"model")[:2] / sha256(b"model")).exists()
    lost = {name for name in before if name.startswith(("fngate.db", "backups/"))}
    assert lost <= set(contents(emptied))


async def test_an_emptied_folder_is_not_open(used: Used) -> None:
    """An emptied folder is closed to callers without a key: the lost one may have been."""
    used.settings.database.unlink()

    emptied = await start_empty(used.settings, NOW_S)

    assert emptied is not None
    database = await Database.open(used.settings.database)
    assert (await OpennessStore(database).load(), await Keys(database).list()) == (CLOSED, [])
    await database.close()


async def test_a_restore_opens_nothing(tmp_path: Path) -> None:
    """A copy keeps what was decided; a folder that is closed stays so, whatever the copy says."""
    settings, opened = StoreSettings(tmp_path), Decision(Openness.OPEN, ("gpu.example",))
    database = await Database.open(settings.database)
    store = OpennessStore(database)
    assert await store.load() == Decision()
    await store.save(opened)
    copy_database(settings.database, tmp_path / "copy.db")
    await database.close()

    found = []
    for _ in range(2):
        await restore(settings, tmp_path / "copy.db", NOW_S)
        database = await Database.open(settings.database)
        found.append(await OpennessStore(database).load())
        await OpennessStore(database).save(CLOSED)
        await database.close()
    assert found == [opened, CLOSED]


async def test_a_sound_folder_is_not_emptied(used: Used, tmp_path: Path) -> None:
    """`start_empty` does nothing for a folder with its database, a new folder, or one after a
    crash."""
    assert await start_empty(StoreSettings(tmp_path / "new"), NOW_S) is None
    await asyncio.to_thread(crash, used.settings, loses_log=False)
    assert await start_empty(used.settings, NOW_S) is None
    check_folder(used.settings)
    database = await Database.open(used.settings.database)
    assert len(await Keys(database).list()) == 3
    await database.close()


async def test_a_folder_with_an_unreadable_row_can_be_emptied(used: Used) -> None:
    """Damage that only the server's start finds is a sufficient reason to start empty."""
    script(used.settings.database, "UPDATE functions SET record = '{'")
    check_folder(used.settings)

    assert await start_empty(used.settings, NOW_S) is not None


async def test_a_store_that_may_not_know_files_spares_them(used: Used) -> None:
    """After a restore, and in a folder with files but no marker, no file is swept for a week."""
    await restore(used.settings, used.copy, NOW_S)
    for _ in range(2):
        database = await Database.open(used.settings.database)
        identity = await enter(database, used.settings, NOW_S)
        await database.close()
        assert identity.sweeps_from_s == NOW_S + SPARED_S
        script(used.settings.database, "UPDATE store SET sweeps_from_s = 0")
        used.settings.marker.unlink()


async def test_a_restore_begins_a_later_epoch(used: Used) -> None:
    """It counts as a thousand openings since the last one of the store that it replaces, also if
    the copy is older, and takes the authority of links out of use; so does an empty start."""
    settings = used.settings
    (settings.link / "authority.pem").parent.mkdir()
    (settings.link / "authority.pem").write_text("the key")
    before = check_folder(settings)
    assert before.opened == 2
    found = await restore(settings, used.copy, NOW_S)
    assert check_folder(settings).opened == 2 + EPOCHS
    assert not settings.link.exists()
    assert found.folder is not None
    assert (found.folder / "link" / "authority.pem").read_text() == "the key"

    again = await restore(settings, used.copy, NOW_S)
    assert again.folder != found.folder
    assert check_folder(settings).opened == 2 + 2 * EPOCHS

    settings.link.mkdir()
    settings.database.unlink()
    aside = await start_empty(settings, NOW_S)
    assert aside is not None
    assert (aside / "link").is_dir()
    assert not settings.link.exists()


async def test_no_copy_has_the_authority_of_links(used: Used) -> None:
    """A copy is of the database alone."""
    used.settings.link.mkdir()
    (used.settings.link / "authority.pem").write_text("-----BEGIN PRIVATE KEY-----")
    copy = used.settings.data / "copy.db"
    copy_database(used.settings.database, copy)
    assert b"PRIVATE KEY" not in copy.read_bytes()


async def test_an_invalid_copy_is_not_restored(used: Used, tmp_path: Path) -> None:
    """The current database stays; the error says what the file is."""
    before = contents(used.settings.data)
    newer = tmp_path / "newer.db"
    shutil.copy(used.copy, newer)
    script(newer, "INSERT INTO schema_version VALUES (99, 'future')")
    (tmp_path / "text").write_text("no database")
    half = tmp_path / "half.db"
    shutil.copy(used.copy, half)
    cut(half)

    for file, text in (
        (newer, "has schema 99, this fngate knows up to"),
        (tmp_path / "text", r"expected a copy of fngate\.db, it is damaged: it does not begin as"),
        (half, "it is damaged: "),
        (tmp_path / "none", "it is missing"),
    ):
        with pytest.raises(BadRequest, match=text):
            await restore(used.settings, file, NOW_S)

    assert contents(used.settings.data) == before


async def test_a_copy_restored_into_another_folder(used: Used, tmp_path: Path) -> None:
    """A new folder gets functions and keys; missing files are counted."""
    settings = StoreSettings(tmp_path / "elsewhere")
    settings.data.mkdir()

    restored = await restore(settings, used.copy, NOW_S)

    assert (restored.missing, restored.folder) == (1, None)
    assert await names(settings) == {"digits"}
    assert settings.database.stat().st_mode & 0o777 == 0o600


async def test_a_lost_candidate_counts_as_missing(used: Used, tmp_path: Path) -> None:
    """A function cannot start without the file that is served instead of its model, so a restore
    counts it if the folder does not have it."""
    database = await Database.open(used.settings.database)
    functions = Functions(database)
    found = await functions.load_all()
    wanted = dataclasses.replace(found[0].revision, optimise=Optimisation("auto", 0.01))
    measured = profile(
        bundle=wanted.bundle,
        engine=profile_engine(wanted),
        model=wanted.model,
        optimised=optimised(model=wanted.model),
    )
    await stored.add_revision(functions, wanted)
    await functions.put_profile(measured)
    await database.close()
    copy_database(used.settings.database, used.copy)
    settings = StoreSettings(tmp_path / "elsewhere")
    settings.data.mkdir()

    assert (await restore(settings, used.copy, NOW_S)).missing == 2


async def test_an_older_database_can_be_accepted(used: Used) -> None:
    """Restoring the database file from itself accepts an older database."""
    replace(used.settings, lambda path: shutil.copy(used.copy, path))
    with pytest.raises(StoreUnavailable, match=r"fnctl restore .*/fngate\.db --data"):
        check_folder(used.settings)

    await restore(used.settings, used.settings.database, NOW_S)

    assert await names(used.settings) == {"digits"}


def killed_at(step: int, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Run `work` in a child process that is killed before its `step`th rename, mkdir, unlink or
    fsync; return whether it was killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = step

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in ("rename", "replace", "fsync", "mkdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    try:
        asyncio.run(work())
    finally:
        os._exit(0)


@pytest.mark.parametrize("way", ["start empty", "restore"])
def test_a_crash_leaves_no_partial_state(tmp_path: Path, way: str) -> None:
    """Killed before any step, the folder is refused as before or has the complete new database; no
    data is lost, and a second try succeeds."""
    origin = StoreSettings(tmp_path / "origin")
    origin.backups.mkdir(parents=True)
    asyncio.run(live(origin))
    copy = tmp_path / "copy.db"
    copy_database(origin.database, copy)
    overwrite(origin.database, 0, b"\0" * 100)
    lost = {origin.database.read_bytes(), b"model"}
    expected = set() if way == "start empty" else {"digits"}

    for step in range(100):
        settings = StoreSettings(tmp_path / f"step{step}")
        shutil.copytree(origin.data, settings.data)

        def work(settings: StoreSettings = settings) -> Coroutine[Any, Any, object]:
            if way == "restore":
                return restore(settings, copy, NOW_S)
            return start_empty(settings, NOW_S)

        was_killed, refusal = killed_at(step, work), ""
        assert lost <= set(contents(settings.data).values())
        try:
            assert asyncio.run(names(settings)) == expected
        except StoreUnavailable as error:
            refusal = error.message
            asyncio.run(work())
            assert asyncio.run(names(settings)) == expected
        assert (was_killed and "cannot be used" in refusal) or not refusal
        assert lost <= set(contents(settings.data).values())
        remove_partial(settings)
        assert not list(settings.data.glob(".*"))
        if not was_killed:
            break
    assert 8 < step < 99


def test_a_killed_copy_is_never_used(tmp_path: Path) -> None:
    """Killed before any step, the name holds the complete old or new copy; left-over files are
    removed at the next start."""
    settings = StoreSettings(tmp_path / "data")
    settings.backups.mkdir(parents=True)
    asyncio.run(live(settings))
    target = settings.backups / DAILY
    copy_database(settings.database, target)
    old = target.read_bytes()
    asyncio.run(live(settings, "later"))

    async def work() -> None:
        copy_database(settings.database, target)

    for step in range(20):
        was_killed = killed_at(step, work)
        found = target.read_bytes()
        assert found == old or not was_killed or len(found) >= len(old)
        with closing(sqlite3.connect(target)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        remove_partial(settings)
        assert [path.name for path in settings.backups.iterdir()] == [DAILY]
        if not was_killed:
            break
    assert 1 < step < 19
