from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from registry.bundles.blobs import BlobStore
from registry.files import DataDirectory
from registry.store.database import Database
from registry.store.functions import Functions
from registry.store.keys import Keys
from tests.support.admin_api import AdminApi, Canned
from tests.support.nouns import bundle, function, profile, revision, sha256

BACKUP = "/admin/v1/backup"
NOBODY = "http://127.0.0.1:9"
"""Address with the port of the discard service, where no server listens."""


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """Create the data folder of a stopped server, with one key."""
    folder = tmp_path / "data"
    folder.mkdir()
    database = await Database.open(folder / "fngate.db")
    await Keys(database).add(["read"], now_s=1.0)
    await database.close()
    return folder


def test_the_servers_copy_is_kept(
    api: AdminApi, fnctl: Callable[..., Result], data: Path, tmp_path: Path
) -> None:
    """The server's copy replaces an older file as a whole and is readable for this user only."""
    content = (data / "fngate.db").read_bytes()
    api.on("GET", BACKUP, Canned(content))
    file = tmp_path / "copy.db"
    file.write_bytes(b"old")

    result = fnctl("backup", str(file))

    assert result.stdout == f"{file}: {len(content) / 1024:.1f} KiB, 0 functions, 1 keys\n"
    assert file.read_bytes() == content
    assert file.stat().st_mode & 0o777 == 0o600
    shown = json.loads(fnctl("backup", str(file), "--json").stdout)
    assert shown == {
        "file": str(file),
        "bytes": len(content),
        "functions": 0,
        "keys": 1,
        "schema": shown["schema"],
    }


def test_a_partial_copy_is_not_kept(
    api: AdminApi, fnctl: Callable[..., Result], data: Path, tmp_path: Path
) -> None:
    """A copy that breaks off, is not a database or is refused leaves the older file and no
    temporary one."""
    content = (data / "fngate.db").read_bytes()
    file = tmp_path / "copies" / "copy.db"
    file.parent.mkdir()
    file.write_bytes(b"old")
    with DataDirectory.open(data):  # otherwise the stopped server's folder is copied
        for canned, code, text in (
            (Canned(content[:5000], lacks=100), 3, "was cut off, 100 bytes are missing"),
            (Canned(content[:8192]), 1, "a copy that is not sound"),
            (Canned(b"hello"), 1, "a copy that is not sound"),
            (Canned({"title": "A key is needed", "code": "no_key"}, 401), 1, "A key is needed"),
        ):
            api.on("GET", BACKUP, canned)
            result = fnctl("backup", str(file))
            assert (result.exit_code, text in result.stderr) == (code, True), result.stderr

    assert (file.read_bytes(), os.listdir(file.parent)) == (b"old", ["copy.db"])


def test_a_killed_backup_leaves_the_older_file(api: AdminApi, data: Path, tmp_path: Path) -> None:
    """A backup that is killed while it receives the copy leaves the older file."""
    file = tmp_path / "copy.db"
    file.write_bytes(b"old")
    killed: list[subprocess.Popen[bytes]] = []
    content = (data / "fngate.db").read_bytes()
    command = [sys.executable, "-c", "from admin.cli.main import main; main()", "backup", str(file)]
    environment = {**os.environ, "FN_URL": api.url, "FN_KEY": "k", "FN_DATA": str(tmp_path / "no")}

    api.on("GET", BACKUP, Canned(content, before=lambda: killed[0].send_signal(signal.SIGKILL)))
    killed.append(subprocess.Popen(command, env=environment))

    assert killed[0].wait(30) == -signal.SIGKILL
    assert file.read_bytes() == b"old"


def test_a_stopped_servers_folder_is_copied(
    fnctl: Callable[..., Result], data: Path, tmp_path: Path
) -> None:
    """Without a server, and with the folder unlocked, the database is copied from the folder."""
    file = tmp_path / "copy.db"

    result = fnctl("backup", str(file), "--url", NOBODY)

    assert (result.exit_code, "0 functions, 1 keys" in result.stdout) == (0, True)
    with DataDirectory.open(data):
        held = fnctl("backup", str(file), "--url", NOBODY)
    assert (held.exit_code, "does not answer" in held.stderr) == (3, True)
    nowhere = fnctl("backup", str(file), "--url", NOBODY, "--data", str(tmp_path / "none"))
    assert nowhere.exit_code == 3
    assert not (tmp_path / "none").exists()


def test_a_database_in_use_is_no_target(
    fnctl: Callable[..., Result], data: Path, tmp_path: Path
) -> None:
    """A database that a server has in use is refused as the target."""
    (data / "fngate.db-wal").touch()

    result = fnctl("backup", str(data / "fngate.db"))

    assert (result.exit_code, "is a database in use" in result.stderr) == (2, True)


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """Create a backup folder: a database with one function, and its blob."""
    folder = tmp_path / "backup"
    folder.mkdir()
    database = await Database.open(folder / "copy.db")
    await Functions(database).deploy(function(revision=0), revision(number=0), bundle(), profile())
    await database.close()
    async with BlobStore(folder / "blobs", 100).receive(sha256(b"model"), 5) as upload:
        await upload.write(b"model")
    return folder


def test_a_copy_is_restored(fnctl: Callable[..., Result], backup: Path, tmp_path: Path) -> None:
    """restore reports the missing blobs, how to bring them, and where the replaced database is."""
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
    assert again == {"functions": 1, "keys": 0, "missing_files": 0, "unreadable_secrets": []}


def test_an_impossible_restore_is_refused(
    fnctl: Callable[..., Result], backup: Path, tmp_path: Path
) -> None:
    """A file that is not a backup, and the folder of a running server, are refused."""
    (tmp_path / "text").write_text("hello")

    wrong = fnctl("restore", str(tmp_path / "text"))
    with DataDirectory.open(tmp_path / "data"):
        held = fnctl("restore", str(backup / "copy.db"))

    assert (wrong.exit_code, "expected a copy of fngate.db" in wrong.stderr) == (2, True)
    assert (held.exit_code, "is in use by another server" in held.stderr) == (1, True)
    assert not (tmp_path / "data" / "fngate.db").exists()
