"""Tests of a server whose data folder loses its database: it opens nothing and deletes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.support.caller import Caller
from tests.support.fake_driver.opening import PROGRAM
from tests.support.process_server import ServerProcess, server_process

MODEL = {"m.onnx": b"\x3a\x00"}
BODY = {"inputs": {}}
OVERRIDES = "-dac_override,-dac_read_search"
PLAIN = ("setpriv", f"--bounding-set={OVERRIDES}", f"--inh-caps={OVERRIDES}")
"""Prefix of a command that makes file modes apply although it runs as root."""


def refused(data: Path, *options: str, before: tuple[str, ...] = ()) -> str:
    """Return the error of a server that does not start."""
    ended = subprocess.run(
        [*before, *PROGRAM, "serve", "--port", "0", "--data", str(data), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    return ended.stderr


async def call(server: ServerProcess, secret: str = "") -> int:
    """Return the status of a call of the function `f`."""
    async with aiohttp.ClientSession() as session:
        bearer = {"Authorization": f"Bearer {secret}"} if secret else {}
        return (await Caller(server.url, server.token, session).call("f", BODY, **bearer)).status


@pytest.mark.slow  # whole processes
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_lost_database(tmp_path: Path, workers: int) -> None:
    """A database is backed up online, lost, refused, restored; lost again and begun anew.

    Calls without a key are refused throughout, until the owner allows them, and every file is kept.
    """
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    options = ("--workers", str(workers))
    with server_process(data, *options, program=PROGRAM) as server:
        async with aiohttp.ClientSession() as session:
            await Caller(server.url, server.token, session).deploy(MODEL, name="f")
        secret = server.fnctl("key", "add", "--scope", "invoke").stdout.strip()
        assert server.fnctl_json("backup", str(copy))["functions"] == 1
    shutil.copytree(data / "blobs", tmp_path / "blobs")
    (data / "fngate.db").unlink()

    text = refused(data)
    assert "it is missing, though this folder has been in use" in text
    assert f"fnctl restore FILE --data {data}" in text
    assert server.fnctl("restore", str(copy)).returncode == 0
    with server_process(data, *options, program=PROGRAM) as server:
        assert [await call(server), await call(server, secret)] == [401, 200]

    shutil.copy(copy, data / "fngate.db")
    assert "it lacks what was written last" in refused(data)
    with server_process(data, *options, "--start-empty", program=PROGRAM) as server:
        assert [await call(server), await call(server, secret)] == [401, 401]
        assert server.fnctl_json("key", "ls")["items"] == []
        assert server.fnctl("access", "open").returncode == 0
        assert await call(server) == 404
    with server_process(data, *options, "--start-empty", program=PROGRAM) as server:
        assert server.fnctl_json("key", "ls")["items"] == []
    (aside,) = [path for path in (data / "set-aside").iterdir() if (path / "blobs").exists()]
    names = {path.name for path in (tmp_path / "blobs").glob("??/*")}
    assert names <= {path.name for path in aside.glob("blobs/??/*")}


@pytest.mark.slow  # whole processes
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv of util-linux")
def test_a_folder_that_may_not_be_read_is_not_a_new_one(tmp_path: Path) -> None:
    """An unreadable and an unwritable data folder are reported as such, not taken for a new one."""
    data = tmp_path / "data"
    with server_process(data, program=PROGRAM):
        pass
    before = (data / "fngate.db").read_bytes()
    plain = PLAIN if os.getuid() == 0 else ()

    (data / "fngate.db").chmod(0)
    assert "disk error: Permission denied" in refused(data, before=plain)
    assert "disk error: Permission denied" in refused(data, "--start-empty", before=plain)
    (data / "fngate.db").chmod(0o400)
    data.chmod(0o500)
    assert "read-only" in refused(data, before=plain)
    data.chmod(0o700)

    assert (data / "fngate.db").read_bytes() == before
    assert not (data / "set-aside").exists()


@pytest.mark.slow  # whole processes
def test_files_of_the_store_are_private(tmp_path: Path) -> None:
    """Database, token, marker and backups are readable for their owner only, whatever the umask."""
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        with server_process(data, program=PROGRAM) as server:
            server.fnctl("key", "add", "--scope", "invoke")
            assert server.fnctl("backup", str(data / "own.db")).returncode == 0
            (data / "fngate.db").chmod(0o644)
            server.kill()
            server.start()
            modes = {p.name: oct(p.stat().st_mode & 0o777) for p in data.iterdir()}
    finally:
        os.umask(before)

    files = ("admin.token", "fngate.db", "fngate.db-wal", "fngate.db-shm", "store.json", "own.db")
    assert {modes[name] for name in files} == {"0o600"}
    assert {modes[name] for name in ("backups", "blobs", "run")} == {"0o700"}
    assert (data / "backups" / "daily.db").stat().st_mode & 0o777 == 0o600
    assert data.stat().st_mode & 0o777 == 0o700
