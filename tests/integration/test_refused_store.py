"""Tests of an unusable store: the server stays up and gives the reason."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.settings import Settings
from registry.errors import Conflict
from registry.settings import StoreSettings
from tests.support import models
from tests.support.fake_driver.driver import FakeDriver
from tests.support.process_server import FNCTL
from tests.support.server import (
    Caller,
    ServerApart,
    serving,
    serving_apart,
)

ROW: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}
BODY: dict[str, Any] = {"inputs": {}}
FAKE = {"m.onnx": b"\x3a\x00"}
OTHER = {"m.onnx": b"\x3a\x02\x12\x00"}
FULL_BYTES = 4096
"""Limit on the size of every file while the disk is "full"."""


class Impatient(Settings):
    """Settings of a server that does not wait for a database lock."""

    def store(self) -> StoreSettings:
        """Return the registry's section without a lock timeout."""
        return replace(super().store(), busy_s=0.01, history_flush_s=0.02)


@asynccontextmanager
async def locked(data: Path) -> AsyncIterator[None]:
    """Hold the database's lock as another process would."""
    path = data / "data" / "fngate.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        # In a thread: the server may be in a transaction that needs the event loop to finish.
        await asyncio.to_thread(other.execute, "BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


async def until_ready(server: Caller, status: str) -> list[str]:
    """Wait until /readyz has this status; return its reasons."""
    shown: dict[str, Any] = {}

    async def asks() -> bool:
        answer = await server.readiness()
        assert answer.status == 200
        shown.update(answer.json())
        return bool(shown["status"] == status)

    await server.until(asks)
    reasons: list[str] = shown["reasons"]
    return reasons


@pytest.mark.slow  # waits for whole processes, or for flushes of the history
async def test_a_locked_database_stops_deploys_but_no_calls(tmp_path: Path) -> None:
    """While another process locks the database, calls are answered, a deploy is 503 with the reason
    and /readyz has it; afterwards both work."""
    async with serving(tmp_path, FakeDriver(), kind=Impatient) as server:
        await server.deploy(FAKE, name="warm")
        await server.deploy(FAKE, name="cold")
        assert (await server.call("warm", BODY)).status == 200
        async with locked(tmp_path):
            answers = [await server.call(name, BODY) for name in ("warm", "cold")]
            refused = await server.try_deploy(OTHER, name="warm")
            no_key = await server.admin("POST", "/keys", {"scopes": ["invoke"]})
            reasons = await until_ready(server, "degraded")
        await until_ready(server, "ok")
        deployed = await server.deploy(OTHER, name="warm")

    assert [answer.status for answer in answers] == [200, 200]
    for answer in (refused, no_key):
        assert (answer.status, answer.problem["code"]) == (503, "store_unavailable")
        assert answer.problem["detail"] == "database locked: database is locked"
    assert len(reasons) == 1
    assert reasons[0].startswith("store: ")
    assert deployed["revision"] == "warm@2"


def fill_disk(server: ServerApart, limit: int) -> None:
    """Limit the size of every file of the server, so that writes fail with EFBIG."""
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, hard))


@pytest.mark.slow  # waits for whole processes, or for flushes of the history
async def test_a_full_disk_stops_deploys_but_no_calls(tmp_path: Path) -> None:
    """While nothing can be written, warm and cold functions are served, upload and deploy are 503
    with the reason and /readyz has it; afterwards both work."""
    async with serving_apart(tmp_path) as server:
        for name in ("warm", "cold"):
            await server.deploy(models.add_one(tmp_path), name=name)
        assert (await server.call("warm", ROW)).status == 200
        fill_disk(server, FULL_BYTES)
        answers = [await server.call(name, ROW) for name in ("warm", "cold")]
        upload = await server.try_deploy({"m.onnx": b"x" * (FULL_BYTES + 1)}, name="warm")
        operation = await server.try_deploy(models.fixed_batch(tmp_path), name="warm")
        reasons = await until_ready(server, "degraded")
        fill_disk(server, resource.RLIM_INFINITY)
        await until_ready(server, "ok")
        deployed = await server.deploy(models.fixed_batch(tmp_path), name="warm", breaking=True)

    assert [answer.status for answer in answers] == [200, 200]
    for answer in (upload, operation):
        assert (answer.status, answer.problem["code"]) == (503, "store_unavailable")
        assert answer.problem["detail"].startswith("disk ")
    assert upload.problem["detail"] == "disk full: File too large"
    assert any(reason.startswith("store: ") for reason in reasons)
    assert deployed["revision"] == "warm@2"


@pytest.mark.slow  # waits for whole processes, or for flushes of the history
async def test_a_second_server_on_one_folder_is_refused(tmp_path: Path) -> None:
    """A second server on a folder is refused with the folder and the first one's pid; the first is
    not affected."""
    async with serving(tmp_path, FakeDriver()) as server:
        with pytest.raises(Conflict, match=r"is in use by another server \(pid \d+\)"):
            async with serving(tmp_path, FakeDriver()):
                pass
        second = await asyncio.create_subprocess_exec(
            *(FNCTL, "serve", "--port", "0", "--data", str(tmp_path / "data")), stderr=PIPE
        )
        _, output = await second.communicate()
        answer = await server.get("/healthz")

    assert second.returncode == 1
    assert b"is in use by another server (pid " in output
    assert b"give this one its own --data" in output
    assert answer.status == 200


@pytest.mark.slow  # waits for whole processes, or for flushes of the history
async def test_a_whole_server_on_uvloop(tmp_path: Path) -> None:
    """A server process on uvloop deploys, wakes, answers, refuses and ends cleanly."""
    async with serving_apart(tmp_path) as server:
        await server.deploy(models.add_one(tmp_path))
        bad = await server.call("add-one", {"inputs": {"x": [[1]]}})
        held = [asyncio.create_task(server.call("add-one", ROW)) for _ in range(16)]
        await asyncio.wait(held)
        good = await server.call("add-one", ROW)

    assert good.json() == {"outputs": {"y": [[2, 3, 4, 5]]}, "revision": "add-one@1"}
    assert bad.status == 400
    assert {task.result().status for task in held} == {200}
    assert server.process.returncode == 0


@pytest.mark.slow  # waits for whole processes, or for flushes of the history
async def test_held_requests_are_answered_before_the_server_ends(tmp_path: Path) -> None:
    """After TERM a held request is answered before the process ends with 0."""
    async with serving_apart(tmp_path) as server:
        await server.deploy(models.add_one(tmp_path))
        call = asyncio.create_task(server.call("add-one", ROW))

        async def is_begun() -> bool:
            # A start may be over between two looks.
            return (await server.function("add-one"))["state"] != "cold"

        await server.until(is_begun)
        server.process.terminate()
        answer = await call

    assert answer.status == 200
    assert server.process.returncode == 0
