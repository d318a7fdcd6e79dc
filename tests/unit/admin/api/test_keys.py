"""Tests of keys over the admin API; they take effect at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.settings import Settings
from registry.settings import StoreSettings
from tests.support.fake_driver.driver import FakeDriver
from tests.support.operator import locked
from tests.support.server import ServingServer, serving

CALL = {"inputs": {}}


async def add(server: ServingServer, *scopes: str, note: str = "") -> dict[str, Any]:
    """Create a key; return it with its secret."""
    answer = await server.admin("POST", "/keys", {"scopes": list(scopes), "note": note})
    assert answer.status == 201, answer
    key: dict[str, Any] = answer.json()
    return key


async def test_the_first_key_closes_what_was_open_and_the_last_opens_nothing(
    server: ServingServer,
) -> None:
    """Without keys, local callers may invoke; after the first key only its holder may, and
    after the removal of the last one nobody."""
    assert (await server.call("digits", CALL)).status == 200
    key = await add(server, "invoke:digits")
    assert (await server.call("digits", CALL)).status == 401
    bearer = f"Bearer {key['secret']}"
    assert (await server.call("digits", CALL, Authorization=bearer)).status == 200

    assert (await server.admin("DELETE", f"/keys/{key['id']}")).status == 200

    assert (await server.call("digits", CALL)).status == 401
    assert (await server.call("digits", CALL, Authorization=bearer)).status == 401


async def test_a_key_has_a_priority(server: ServingServer) -> None:
    """It is normal unless the request says high; anything else is refused."""
    for wanted, expected in (({}, "normal"), ({"priority": "high"}, "high")):
        answer = await server.admin("POST", "/keys", {"scopes": ["invoke"], **wanted})
        assert (answer.status, answer.json()["priority"]) == (201, expected)
    answer = await server.admin("POST", "/keys", {"scopes": ["invoke"], "priority": "low"})
    assert answer.status == 400
    listed = (await server.admin("GET", "/keys")).json()["items"]
    assert [key["priority"] for key in listed] == ["normal", "high"]


async def test_a_secret_is_shown_once(server: ServingServer) -> None:
    """Only the creation of a key returns its secret; the list has ids, scopes and notes."""
    key = await add(server, "read", "invoke", note="for the build")

    answer = await server.admin("GET", "/keys")

    (listed,) = answer.json()["items"]
    assert (listed["id"], listed["scopes"], listed["note"]) == (
        key["id"],
        ["read", "invoke"],
        "for the build",
    )
    assert key["secret"].encode() not in answer.body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "the key request cannot be read"),
        (b'{"scopes": "read"}', "Expected `array`, got `str`"),
        (b'{"scopes": [], "x": 1}', "unknown field `x`"),
        (b'{"scopes": []}', "expected at least one of"),
        (b'{"scopes": ["root"]}', "got 'root'"),
        (b'{"scopes": ["read"], "note": "\\u0007"}', "note: expected"),
    ],
)
async def test_a_bad_key_request_is_told(server: ServingServer, body: bytes, text: str) -> None:
    """A bad key request is refused with what was expected, and creates no key."""
    answer = await server.admin("POST", "/keys", body)

    assert answer.status == 400
    assert text in answer.problem["detail"]
    assert (await server.admin("GET", "/keys")).json()["items"] == []


async def test_a_long_key_request_is_refused(server: ServingServer) -> None:
    """A key request over 64 KiB is refused."""
    assert (await server.admin("POST", "/keys", b" " * 65537)).status == 413


async def test_a_key_that_is_not_there_cannot_be_removed(server: ServingServer) -> None:
    """Removing an unknown key is 404 and leaves the others."""
    key = await add(server, "read")

    assert (await server.admin("DELETE", "/keys/nothing")).status == 404
    assert [one["id"] for one in (await server.admin("GET", "/keys")).json()["items"]] == [
        key["id"]
    ]


class Impatient(Settings):
    """Settings of a server that does not wait for a database lock."""

    def store(self) -> StoreSettings:
        return replace(super().store(), busy_s=0.0)


async def test_a_key_that_was_not_stored_opens_nothing(tmp_path: Path) -> None:
    """With the store locked, creating a key is 503 and access stays as it was."""
    async with serving(tmp_path, FakeDriver(), kind=Impatient) as server:
        with locked(server.server.store.settings.database):
            answer = await server.admin("POST", "/keys", {"scopes": ["read"]})

        assert (answer.status, answer.problem["code"]) == (503, "store_unavailable")
        assert not server.server.store.ring.has_keys
        assert (await server.get("/metrics")).status == 200


async def test_a_key_learns_what_it_may_do(tmp_path: Path) -> None:
    """A caller can read its own scopes: admin for the token, its scopes for a key; a key that may
    not read is refused."""
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
    """The dashboard's page needs no key; its data does."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        assert (await server.get("/ui/")).status == 200
        assert (await server.get("/admin/v1/session")).status == 401
