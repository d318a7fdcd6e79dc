"""Tests of what a key is told about itself."""

from __future__ import annotations

from pathlib import Path

from pool_manager.drivers.fake import FakeDriver
from tests.support.server import serving


async def test_a_key_learns_what_it_may_do(tmp_path: Path) -> None:
    """The token is told admin, a key its scopes; one that may not read is refused."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        told = (await server.admin("GET", "/session")).json()
        assert told["scopes"] == ["admin"]
        assert sorted(told) == ["driver", "scopes", "version", "workers"]

        bearers = {}
        for scope in ("read", "deploy", "invoke"):
            made = await server.admin("POST", "/keys", {"scopes": [scope], "note": ""})
            bearers[scope] = f"Bearer {made.json()['secret']}"
        for scope in ("read", "deploy"):
            answer = await server.get("/admin/v1/session", Authorization=bearers[scope])
            assert answer.json()["scopes"] == [scope]

        refused = await server.get("/admin/v1/session", Authorization=bearers["invoke"])
        assert (refused.status, refused.problem["code"]) == (403, "wrong_scope")


async def test_the_dashboard_is_served_without_a_key(tmp_path: Path) -> None:
    """It is the program; the data behind it is not."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        assert (await server.get("/ui/")).status == 200
        assert (await server.get("/admin/v1/session")).status == 401
