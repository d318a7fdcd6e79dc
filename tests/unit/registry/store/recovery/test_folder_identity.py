"""Which store a data folder belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.recovery.folder import (
    SPARED_S,
    Marker,
    enter,
    has_files,
    read_marker,
    write_marker,
)

NOW_S = 1000.0


async def test_each_server_is_counted_in(database: Database, tmp_path: Path) -> None:
    """The marker says what the database says, one more for every start; nobody else reads it."""
    settings = StoreSettings(tmp_path)
    assert read_marker(settings) is None

    found = [await enter(database, settings, NOW_S) for _ in range(3)]

    assert [one.opened for one in found] == [1, 2, 3]
    assert len({one.id for one in found}) == 1
    assert read_marker(settings) == Marker(found[0].id, 3)
    assert settings.marker.stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_keeps_no_server_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be served is served; the marker stays behind, which is no fault. Files that the
    store may not know are spared all the same."""
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
def test_a_marker_that_cannot_be_understood_is_none(tmp_path: Path, text: bytes) -> None:
    """The next server writes it anew; one that cannot be read is an error."""
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
    """Only what lies where blobs lie counts, not what comes in or was left empty."""
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
