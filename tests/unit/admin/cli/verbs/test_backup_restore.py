from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from registry.bundles.blobs import BlobStore
from registry.files import DataDirectory
from registry.store.database import Database
from registry.store.functions import Functions
from tests.support.nouns import bundle, function, profile, revision, sha256


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """A backup folder: a database with one function, and its file."""
    folder = tmp_path / "backup"
    folder.mkdir()
    database = await Database.open(folder / "copy.db")
    await Functions(database).deploy(function(revision=0), revision(number=0), bundle(), profile())
    await database.close()
    async with BlobStore(folder / "blobs", 100).receive(sha256(b"model"), 5) as upload:
        await upload.write(b"model")
    return folder


def test_a_copy_is_restored(fnctl: Callable[..., Result], backup: Path, tmp_path: Path) -> None:
    """It says what is missing and how that is brought, and where the database before it is."""
    data = tmp_path / "data"

    result = fnctl("restore", str(backup / "copy.db"))

    assert result.stdout.splitlines() == [
        "restored 1 functions and 0 keys",
        "1 files of functions are missing; copy them from the backup:",
        f"  mkdir -p {data}/blobs/ && cp -an {backup}/blobs/. {data}/blobs/",
        f"next: fnctl serve --data {data}",
    ]
    shutil.copytree(backup / "blobs", data / "blobs", dirs_exist_ok=True)
    again = json.loads(fnctl("restore", str(backup / "copy.db"), "--json").stdout)
    assert Path(again.pop("set_aside")).is_relative_to(data / "set-aside")
    assert again == {"functions": 1, "keys": 0, "missing_files": 0}


def test_what_cannot_be_restored(
    fnctl: Callable[..., Result], backup: Path, tmp_path: Path
) -> None:
    """A file that is no copy, and the folder of a server that runs."""
    (tmp_path / "text").write_text("hello")

    wrong = fnctl("restore", str(tmp_path / "text"))
    with DataDirectory.open(tmp_path / "data"):
        held = fnctl("restore", str(backup / "copy.db"))

    assert (wrong.exit_code, "expected a copy of fngate.db" in wrong.stderr) == (2, True)
    assert (held.exit_code, "is in use by another server" in held.stderr) == (1, True)
    assert not (tmp_path / "data" / "fngate.db").exists()
