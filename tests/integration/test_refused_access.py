"""Who is turned away at the door: no key, wrong scope, foreign hosts, foreign pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.fake import FakeDriver
from registry.errors import BadRequest
from tests.support import models
from tests.support.server import Answer, ServingServer, serving

JSON: dict[str, Any] = {"inputs": {}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """The functions `open` and `other` on fake replicas, which answer any JSON."""
    async with serving(tmp_path, FakeDriver()) as server:
        for name in ("open", "other"):
            await server.deploy(models.add_one(tmp_path), name=name)
        yield server


async def key(server: ServingServer, *scopes: str) -> str:
    """The Authorization header of a new key."""
    answer = await server.admin("POST", "/keys", {"scopes": list(scopes)})
    assert answer.status == 201, answer
    return f"Bearer {answer.json()['secret']}"


async def deploy_as(server: ServingServer, headers: dict[str, str]) -> Answer:
    """A deploy's last request."""
    path = "/admin/v1/functions/new/revisions"
    return await server.request("POST", path, {"files": []}, headers)


async def test_while_there_is_no_key_loopback_may_invoke(server: ServingServer) -> None:
    """On loopback without keys invoking, describing, health and metrics are open."""
    assert (await server.call("open", JSON)).status == 200
    for path in ("/fn/open", "/metrics", "/healthz", "/readyz"):
        assert (await server.get(path)).status == 200


async def test_once_there_is_a_key_calls_need_one(server: ServingServer) -> None:
    """401 says how to send a key; health alone stays open."""
    await key(server, "read")

    answer = await server.call("open", JSON)

    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="fngate"'
    assert answer.problem["detail"] == "expected the header Authorization: Bearer <key>"
    for path in ("/fn/open", "/metrics"):
        assert (await server.get(path)).status == 401
    for path in ("/healthz", "/readyz"):
        assert (await server.get(path)).status == 200


async def test_an_unknown_key_opens_nothing(server: ServingServer) -> None:
    """401 for a key nobody made, even where none would be needed."""
    answer = await server.call("open", JSON, Authorization="Bearer fn_nobody")

    assert answer.status == 401
    assert answer.problem["detail"] == "the key is unknown"


async def test_a_key_for_one_function_opens_no_other(server: ServingServer) -> None:
    """403 names the scope that is needed and those the key has."""
    bearer = await key(server, "invoke:open")

    assert (await server.call("open", JSON, Authorization=bearer)).status == 200
    answer = await server.call("other", JSON, Authorization=bearer)

    assert answer.status == 403
    assert answer.problem["detail"] == "this needs the scope invoke, the key has invoke:open"


async def test_a_removed_key_opens_nothing_any_more(server: ServingServer) -> None:
    """401 at once after a key was revoked."""
    bearer = await key(server, "invoke")
    listed = (await server.admin("GET", "/keys")).json()["items"]
    await key(server, "read")  # so that invoking still needs a key

    assert (await server.admin("DELETE", f"/keys/{listed[0]['id']}")).status == 200

    assert (await server.call("open", JSON, Authorization=bearer)).status == 401


async def test_the_admin_api_always_needs_a_key(server: ServingServer) -> None:
    """401 under /admin without a key, even on loopback and for routes that do not exist."""
    for method, path in (("GET", "/functions"), ("PUT", "/blobs/00"), ("GET", "/nowhere")):
        answer = await server.request(method, f"/admin/v1{path}")
        assert (answer.status, answer.problem["code"]) == (401, "no_key")


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        ("invoke", [], ["read", "deploy", "admin"]),
        ("read", ["read"], ["deploy", "admin"]),
        ("deploy", ["read", "deploy"], ["admin"]),
    ],
)
async def test_a_scope_opens_what_it_names(
    server: ServingServer, scope: str, allowed: list[str], refused: list[str]
) -> None:
    """403 for every admin route beyond the key's scope; what is within is let through."""
    bearer = {"Authorization": await key(server, scope)}
    answers = {
        "read": await server.request("GET", "/admin/v1/functions", None, bearer),
        "deploy": await deploy_as(server, bearer),
        "admin": await server.request("GET", "/admin/v1/keys", None, bearer),
    }

    assert {need: answers[need].status for need in refused} == dict.fromkeys(refused, 403)
    for need in refused:
        expected = f"this needs the scope {need}, the key has {scope}"
        assert answers[need].problem["detail"] == expected
    assert [need for need in allowed if answers[need].status in (401, 403)] == []


async def test_a_foreign_host_is_served_nothing(server: ServingServer) -> None:
    """421 on every kind of route for a Host header that is not this server's (DNS rebinding)."""
    bearer = {"Authorization": f"Bearer {server.token}"}
    for method, path in (
        ("POST", "/fn/open"),
        ("GET", "/fn/open"),
        ("GET", "/admin/v1/functions"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
    ):
        answer = await server.request(method, path, None, {"Host": "evil.example", **bearer})
        assert answer.status == 421, path
        assert answer.problem["detail"] == (
            "Host: expected 127.0.0.1 or ::1 or localhost, got 'evil.example';"
            " name it with --public-host"
        )


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        (
            {"Origin": "http://evil.example"},
            "a page of 'http://evil.example' may not call this server",
        ),
        ({"Origin": "null"}, "a page of 'null' may not call this server"),
        ({"Sec-Fetch-Site": "cross-site"}, "a page of another site may not call this server"),
    ],
)
async def test_a_page_of_another_origin_can_neither_invoke_nor_deploy(
    server: ServingServer, headers: dict[str, str], detail: str
) -> None:
    """403 for what a browser sends from a foreign page, with or without the admin's key."""
    invoked = await server.request("POST", "/fn/open", {}, headers)
    bearer = {"Authorization": f"Bearer {server.token}"}
    deployed = await deploy_as(server, {**headers, **bearer})

    for answer in (invoked, deployed):
        assert (answer.status, answer.problem["code"]) == (403, "foreign_origin")
        assert answer.problem["detail"] == detail
    assert server.bound() == []
    assert server.server.store.catalog.find("new") is None


async def test_a_page_of_this_server_may_call_it(server: ServingServer) -> None:
    """Its own pages, the dashboard's, are no foreign origin."""
    answer = await server.call("open", JSON, Origin=server.url, Sec_Fetch_Site="same-origin")

    assert answer.status == 200


async def test_other_machines_may_only_connect_where_a_key_and_a_host_are_named(
    tmp_path: Path,
) -> None:
    """A server that listens beyond loopback does not start without a key and a public host."""
    with pytest.raises(BadRequest, match="first create a key"):
        async with serving(tmp_path, FakeDriver(), listen="0.0.0.0"):
            pass
    async with serving(tmp_path, FakeDriver()) as server:
        await key(server, "invoke")
    with pytest.raises(BadRequest, match="needs --public-host NAME"):
        async with serving(tmp_path, FakeDriver(), listen="0.0.0.0"):
            pass
