"""Tests of whether a database belongs to its data folder. Refused folders: see test_restoring."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.bundles.blobs import BlobStore
from registry.errors import StoreUnavailable
from registry.model.operations import Operation
from registry.settings import StoreSettings
from registry.store.database import MIGRATIONS, Database
from registry.store.operations import Operations
from registry.store.recovery.folder import (
    SPARED_S,
    Marker,
    check_folder,
    enter,
    explained,
    find_problem,
    has_files,
    keep_earlier_schema,
    read_marker,
    write_marker,
)
from registry.store.recovery.inspection import DatabaseReport, inspect_database
from tests.support.nouns import sha256

SOUND = DatabaseReport("sound", schema=5, id="a", opened=3)


@pytest.mark.parametrize(
    ("database", "marker", "is_accepted"),
    [
        (SOUND, Marker("a", 3), True),
        (SOUND, Marker("a", 2), True),  # a crash between the database and its marker
        (SOUND, Marker("a", 4), False),
        (SOUND, Marker("b", 3), False),
        (SOUND, None, True),
        (DatabaseReport("sound", schema=4), None, True),
        (DatabaseReport("sound", schema=4, is_blank=True), None, False),
        (DatabaseReport("sound", schema=5, id="a", is_blank=True), Marker("a", 0), True),
        (DatabaseReport("missing"), None, False),
    ],
)
def test_which_database_belongs_to_a_folder(
    database: DatabaseReport, marker: Marker | None, is_accepted: bool
) -> None:
    """In a folder with files of functions, only a database with the marker's id and at least its
    count is accepted; without a marker, one that is not blank."""
    problem = find_problem(database, marker, has_blobs=True, was_used=True)

    assert (problem == "") is is_accepted


def test_a_new_folder_is_accepted() -> None:
    """A folder that no server has used is accepted."""
    for state in ("missing", "empty"):
        assert not find_problem(DatabaseReport(state), None, has_blobs=False, was_used=False)


async def test_a_store_with_a_pending_operation_is_not_blank(tmp_path: Path) -> None:
    """An unfinished first deploy of an earlier release must be kept."""
    settings = StoreSettings(tmp_path)
    database = await Database.open(settings.database, migrations=MIGRATIONS[:4])
    await Operations(database).put(Operation("op1", "deploy", "digits", {}))
    await database.close()
    async with BlobStore(settings.blobs, 1000).receive(sha256(b"model"), 5) as upload:
        await upload.write(b"model")

    check_folder(settings)


async def test_an_earlier_schema_is_kept_before_it_changes(tmp_path: Path) -> None:
    """A database of an earlier schema is copied once before its migration; others are not
    copied."""
    settings = StoreSettings(tmp_path)
    keep_earlier_schema(settings, check_folder(settings))
    await (await Database.open(settings.database, migrations=MIGRATIONS[:4])).close()

    keep_earlier_schema(settings, check_folder(settings))
    await (await Database.open(settings.database)).close()
    keep_earlier_schema(settings, check_folder(settings))

    assert [path.name for path in settings.backups.iterdir()] == ["schema-4.db"]
    assert inspect_database(settings.backups / "schema-4.db", is_checked=True).schema == 4


def test_damage_that_is_found_later_is_explained_too(tmp_path: Path) -> None:
    """Damage found after the start has the same advice; other errors stay unchanged."""
    with (
        pytest.raises(StoreUnavailable, match=r"(?s)a Key has .*--start-empty"),
        explained(StoreSettings(tmp_path)),
    ):
        raise StoreUnavailable("database corrupt: a Key has no id")
    with (
        pytest.raises(StoreUnavailable, match=r"^disk full$"),
        explained(StoreSettings(tmp_path)),
    ):
        raise StoreUnavailable("disk full")


NOW_S = 1000.0


async def test_each_start_is_counted(database: Database, tmp_path: Path) -> None:
    """Database and marker count every start; only the owner can read the marker."""
    settings = StoreSettings(tmp_path)
    assert read_marker(settings) is None

    found = [await enter(database, settings, NOW_S) for _ in range(3)]

    assert [one.opened for one in found] == [1, 2, 3]
    assert len({one.id for one in found}) == 1
    assert read_marker(settings) == Marker(found[0].id, 3)
    assert settings.marker.stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_does_not_prevent_the_start(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unwritable marker does not prevent the start; unknown files are still protected from the
    sweep."""
    settings = StoreSettings(tmp_path)
    blob = settings.blobs / "ab" / ("ab" * 32)
    blob.parent.mkdir(parents=True)
    blob.touch()

    def fail(_settings: StoreSettings, _marker: Marker) -> None:
        raise StoreUnavailable("disk full")

    monkeypatch.setattr("registry.store.recovery.folder.write_marker", fail)
    identity = await enter(database, settings, NOW_S)

    assert identity.sweeps_from_s == NOW_S + SPARED_S
    assert read_marker(settings) is None


@pytest.mark.parametrize("text", [b"", b"{", b'{"id": 7}', b"\xff\xff", b"[]"])
def test_an_invalid_marker_counts_as_missing(tmp_path: Path, text: bytes) -> None:
    """An invalid marker is written again by the next server; an unreadable one is an error."""
    settings = StoreSettings(tmp_path)
    settings.marker.write_bytes(text)
    assert read_marker(settings) is None
    settings.marker.unlink()
    settings.marker.mkdir()

    with pytest.raises(StoreUnavailable):
        read_marker(settings)
    with pytest.raises(StoreUnavailable):
        write_marker(settings, Marker("a", 1))


def test_files_of_bundles(tmp_path: Path) -> None:
    """Only blobs count as files; partial uploads and empty folders do not."""
    assert not has_files(tmp_path / "blobs")
    for name in ("incoming", "ab", "cd"):
        (tmp_path / "blobs" / name).mkdir(parents=True)
    (tmp_path / "blobs" / "incoming" / "half").touch()
    assert not has_files(tmp_path / "blobs")
    (tmp_path / "blobs" / "cd" / "x").touch()
    assert has_files(tmp_path / "blobs")
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        has_files(tmp_path / "file")
