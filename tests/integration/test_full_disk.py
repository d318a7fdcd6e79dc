"""Tests of a server whose disk is full to the last byte."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.support.process_server import ServerProcess
from tests.support.small_disk import DISK_MIB, fill, server_on_a_small_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose data folder is on a small disk, with a ballast of 4 MiB."""
    with server_on_a_small_disk(tmp_path) as server:
        yield server


async def ask(
    session: ClientSession, method: str, path: str, **more: Any
) -> tuple[int, dict[str, Any]]:
    """Return status and document of an answer."""
    async with session.request(method, path, **more) as answer:
        return answer.status, await answer.json(content_type=None)


async def revoke(session: ClientSession, key: dict[str, Any]) -> tuple[int, str]:
    """Revoke a key; return the status, and the code of the problem if there is one."""
    status, document = await ask(session, "DELETE", f"/admin/v1/keys/{key['id']}")
    return status, document.get("code", "")


async def is_accepted(session: ClientSession, key: dict[str, Any]) -> bool:
    """Return whether a key opens the admin API."""
    bearer = {"Authorization": f"Bearer {key['secret']}"}
    return (await ask(session, "GET", "/admin/v1/session", headers=bearer))[0] == 200


async def test_a_full_disk_does_not_keep_a_key_alive(server: ServerProcess) -> None:
    """The key of whoever has filled the disk is revoked, also after a restart. Where even the
    ballast is used up the answer says that it is not stored, and the next attempt stores it."""
    first, second = (server.fnctl_json("key", "add", "--scope", "deploy") for _ in range(2))
    disk, ballast = server.data.parent, server.data / "ballast"
    async with server.session() as session:
        assert ballast.stat().st_size == 4 << 20
        fill(disk)
        assert await revoke(session, first) == (200, "")
        assert not ballast.exists()

        filler = fill(disk)
        for _ in range(2):
            assert await revoke(session, second) == (503, "revoked_not_stored")
            assert not await is_accepted(session, second)
        _, state = await ask(session, "GET", "/readyz")
        assert any(one.startswith("keys: 1 revoked") for one in state["reasons"])
        assert (await ask(session, "GET", "/admin/v1/keys"))[1]["items"] == []

    server.kill()
    server.start()
    async with server.session() as session:
        assert [await is_accepted(session, key) for key in (first, second)] == [False, True]
        filler.unlink()
        assert await revoke(session, second) == (200, "")
        assert await revoke(session, second) == (404, "unknown")


async def test_uploads_leave_the_ballasts_room(server: ServerProcess) -> None:
    """A file that would leave less than twice the ballast free is refused before it is sent: who
    may deploy cannot take the room of a revocation."""
    much = BytesIO(bytes((DISK_MIB - 9) << 20))
    async with server.session() as session:
        path = f"/admin/v1/blobs/{'0' * 64}"
        status, refused = await ask(session, "PUT", path, data=much, expect100=True)

    assert (status, refused["code"]) == (503, "store_unavailable")
    assert "disk full: expected 8 MiB that stay free" in refused["detail"]
