"""A copy of the database over HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from registry.errors import StoreUnavailable
from registry.store.recovery.inspection import inspect_database
from tests.support.server import ServingServer


async def test_a_copy_is_sent(server: ServingServer, tmp_path: Path) -> None:
    """It is a whole database with what was committed a moment ago, and leaves no file behind."""
    await server.admin("POST", "/keys", {"scopes": ["invoke"]})

    answer = await server.admin("GET", "/backup")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/vnd.sqlite3")
    assert answer.headers["Cache-Control"] == "no-store"
    (tmp_path / "copy").write_bytes(answer.body)
    report = inspect_database(tmp_path / "copy", is_checked=True)
    assert (report.state, report.functions, report.keys) == ("sound", 1, 1)
    backups = server.server.store.settings.backups
    assert [name for name in os.listdir(backups) if name.startswith(".")] == []


async def test_copies_at_once_are_bounded(server: ServingServer) -> None:
    """More than two at a time are asked to come again."""
    answers = await asyncio.gather(*(server.admin("GET", "/backup") for _ in range(6)))

    found = sorted(answer.status for answer in answers)
    assert set(found) <= {200, 429}
    assert found.count(200) >= 2
    assert (await server.admin("GET", "/backup")).status == 200


async def test_a_copy_that_cannot_be_made(server: ServingServer) -> None:
    """503 with the reason, as it is told in /readyz for the daily one."""
    backups = server.server.store.backups

    async def fail() -> None:
        raise StoreUnavailable("disk full: no room")

    backups.snapshot = fail  # type: ignore[assignment, method-assign]
    answer = await server.admin("GET", "/backup")
    assert (answer.status, answer.problem["detail"]) == (503, "disk full: no room")

    backups._failure = "disk full"
    readiness = (await server.get("/readyz")).json()
    assert readiness["status"] == "degraded"
    assert readiness["reasons"][0].startswith("backup: the daily copy of the database failed")
