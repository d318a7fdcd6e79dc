"""Tests of requests refused for access: no key, wrong scope, foreign host or origin."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from registry.errors import BadRequest
from tests.support import models
from tests.support.fake_driver.driver import FakeDriver
from tests.support.server import Answer, ServingServer, serving

JSON: dict[str, Any] = {"inputs": {}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server with `open` and `other` on fake replicas, which accept any JSON."""
    async with serving(tmp_path, FakeDriver()) as server:
        for name in ("open", "other"):
            await server.deploy(models.add_one(tmp_path), name=name)
        yield server


async def key(server: ServingServer, *scopes: str) -> str:
    """Return the Authorization header of a new key."""
    answer = await server.admin("POST", "/keys", {"scopes": list(scopes)})
    assert answer.status == 201, answer
    return f"Bearer {answer.json()['secret']}"


async def deploy_as(server: ServingServer, headers: dict[str, str]) -> Answer:
    """Send the last request of a deploy."""
    path = "/admin/v1/functions/new/revisions"
    return await server.request("POST", path, {"files": []}, headers)


async def test_while_there_is_no_key_loopback_may_invoke(server: ServingServer) -> None:
    """Without keys, invoking, describing, health and metrics are open on loopback."""
    assert (await server.call("open", JSON)).status == 200
    for path in ("/fn/open", "/metrics", "/healthz", "/readyz"):
        assert (await server.get(path)).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", "/fn/open"), ("GET", "/fn/open"), ("GET", "/fn/open/openapi.json")],
        *[("GET", "/metrics"), ("GET", "/v1/models"), ("POST", "/v2/models/open/infer")],
        *[("GET", "/v2/models/open"), ("POST", "/v2/repository/index"), ("GET", "/v2")],
    ],
)
async def test_what_a_proxy_passes_on_needs_a_key(
    server: ServingServer, method: str, path: str
) -> None:
    """At every door of a server that nobody has decided about, also right after the same request
    without a proxy's field. The refusal says how to open it; the operator's decision does, and
    another one closes it to this machine as well."""
    body = {} if method == "POST" else None
    proxied = ({"Via": "1.1 edge"}, {"X-Forwarded-For": "203.0.113.7"}, {"x-real-ip": "::1"})

    async def statuses() -> list[int]:
        fields = ({}, *proxied, {"Forwarded": "for=_x"})
        return [(await server.request(method, path, body, one)).status for one in fields]

    before = await statuses()
    refused = await server.request(method, path, body, proxied[0])
    assert await _decide(server, "open") == 200
    opened = await statuses()
    assert await _decide(server, "closed") == 200
    closed = await statuses()

    assert 401 not in opened
    assert before == [opened[0], 401, 401, 401, 401]
    assert b"fnctl access open" in refused.body
    assert set(closed) == {401}
    assert (await server.request("GET", "/healthz", None, proxied[0])).status == 200


async def _decide(server: ServingServer, openness: str) -> int:
    return (await server.admin("PATCH", "/access", {"openness": openness})).status


async def test_the_last_key_that_goes_opens_nothing(server: ServingServer) -> None:
    """A server that had a key stays closed without it, until the operator opens it."""
    await key(server, "read")
    (listed,) = (await server.admin("GET", "/keys")).json()["items"]
    assert (await server.admin("DELETE", f"/keys/{listed['id']}")).status == 200

    assert (await server.call("open", JSON)).status == 401
    state = (await server.admin("GET", "/access")).json()
    assert state == {"openness": "closed", "exposure": [], "has_keys": False}
    assert await _decide(server, "local") == 400
    assert await _decide(server, "open") == 200
    assert (await server.call("open", JSON)).status == 200


async def test_the_admin_token_rotates(server: ServingServer) -> None:
    """The new one is in the file and counts at once; the old one opens nothing any more. Of two
    rotations at once, one wins; the other says so, or came with a token that is the old one."""
    data, old = server.server.store.settings.data, server.token

    both = await asyncio.gather(*(server.admin("POST", "/access/token") for _ in range(2)))

    assert sorted(answer.status for answer in both) in ([200, 409], [200, 401])
    new = (data / "admin.token").read_text().strip()
    assert stat.S_IMODE((data / "admin.token").stat().st_mode) == 0o600
    statuses = [
        (await server.get("/admin/v1/keys", Authorization=f"Bearer {token}")).status
        for token in (old, new)
    ]
    assert statuses == [401, 200]


async def test_once_there_is_a_key_calls_need_one(server: ServingServer) -> None:
    """With a key, calls without one are 401 with how to send it; only health stays open."""
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
    """An unknown key is 401, even if none would be needed."""
    answer = await server.call("open", JSON, Authorization="Bearer fn_nobody")

    assert answer.status == 401
    assert answer.problem["detail"] == "the key is unknown"


async def test_a_key_for_one_function_opens_no_other(server: ServingServer) -> None:
    """A key for another function is 403 with the needed scope and those of the key."""
    bearer = await key(server, "invoke:open")

    assert (await server.call("open", JSON, Authorization=bearer)).status == 200
    answer = await server.call("other", JSON, Authorization=bearer)

    assert answer.status == 403
    assert answer.problem["detail"] == "this needs the scope invoke, the key has invoke:open"


async def test_a_removed_key_opens_nothing_any_more(server: ServingServer) -> None:
    """A revoked key is 401 at once."""
    bearer = await key(server, "invoke")
    listed = (await server.admin("GET", "/keys")).json()["items"]
    await key(server, "read")  # so that invoking still needs a key

    assert (await server.admin("DELETE", f"/keys/{listed[0]['id']}")).status == 200

    assert (await server.call("open", JSON, Authorization=bearer)).status == 401


async def test_the_admin_api_always_needs_a_key(server: ServingServer) -> None:
    """The admin API without a key is 401, even on loopback and for unknown routes."""
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
    """An admin route beyond the key's scope is 403; one within it is allowed."""
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
    """A Host header that is not this server's is 421 on every kind of route (DNS rebinding)."""
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
    """A browser's request from a foreign origin is 403, with or without the admin's key."""
    invoked = await server.request("POST", "/fn/open", {}, headers)
    bearer = {"Authorization": f"Bearer {server.token}"}
    deployed = await deploy_as(server, {**headers, **bearer})

    for answer in (invoked, deployed):
        assert (answer.status, answer.problem["code"]) == (403, "foreign_origin")
        assert answer.problem["detail"] == detail
    assert server.bound() == []
    assert server.server.store.catalog.find("new") is None


async def test_a_page_of_this_server_may_call_it(server: ServingServer) -> None:
    """A request from the server's own origin, that of the dashboard, is allowed."""
    answer = await server.call("open", JSON, Origin=server.url, Sec_Fetch_Site="same-origin")

    assert answer.status == 200


async def test_other_machines_may_only_connect_where_a_key_and_a_host_are_named(
    tmp_path: Path,
) -> None:
    """A server beyond loopback does not start without a key and a public host."""
    with pytest.raises(BadRequest, match="first create a key"):
        async with serving(tmp_path, FakeDriver(), listen="0.0.0.0"):
            pass
    async with serving(tmp_path, FakeDriver()) as server:
        await key(server, "invoke")
    with pytest.raises(BadRequest, match="needs --public-host NAME"):
        async with serving(tmp_path, FakeDriver(), listen="0.0.0.0"):
            pass
