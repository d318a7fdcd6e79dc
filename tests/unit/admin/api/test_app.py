"""Tests of every route of the admin API and the scope that it needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admin.documents.routes import ROUTES
from admin.store import admin_token
from admin.workers.hub import Hub
from tests.support.described import check_answer, described_routes
from tests.support.fake_driver.driver import FakeDriver
from tests.support.operator import locked, until
from tests.support.server import ServingServer, serving

ROWS = [(*key.split(" "), about.need) for key, about in ROUTES.items()]
PARTS = {"name": "nobody", "id": "nothing", "sha256": "0" * 64}
ENDLESS = {"/events": "/events?function=0"}
"""Event streams; each is requested with a parameter that gives 400, so that the answer ends."""
WIDER = {"invoke": "admin", "read": "deploy", "deploy": "admin", "admin": "admin"}
WRONG = {"invoke": "deploy", "read": "invoke", "deploy": "read", "admin": "deploy"}


async def bearer(server: ServingServer, scope: str) -> dict[str, str]:
    """Return the Authorization header of a new key."""
    answer = await server.admin("POST", "/keys", {"scopes": [scope]})
    return {"Authorization": f"Bearer {answer.json()['secret']}"}


async def test_every_row_needs_its_scope(server: ServingServer) -> None:
    """Every route answers 401 without a key, 403 with another scope, and accepts its scope or a
    wider one."""
    keys = {scope: await bearer(server, scope) for scope in ("invoke", "read", "deploy", "admin")}
    for method, path, need in ROWS:
        url = "/admin/v1" + ENDLESS.get(path, path).format(**PARTS)
        assert (await server.request(method, url)).status == 401, (method, path)
        wrong = await server.request(method, url, None, keys[WRONG[need]])
        assert wrong.status == 403, (method, path)
        for scope in (need, WIDER[need]):
            answer = await server.request(method, url, None, keys[scope])
            assert answer.status not in (401, 403, 500), (method, path, answer)


async def test_the_admin_token_opens_every_row(server: ServingServer) -> None:
    """The token in DATA/admin.token may use every route, and each answer is as the document
    says."""
    described = described_routes()
    for method, path, _ in ROWS:
        answer = await server.admin(method, ENDLESS.get(path, path).format(**PARTS))
        server.token = admin_token(server.server.store.settings.data)  # one row replaces it
        assert answer.status not in (401, 403, 500), (method, path, answer)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        check_answer(described[f"{method} /admin/v1{path}"], answer.status, kind, answer.body)


@pytest.mark.parametrize("path", ["/nowhere", "/functions/digits/nowhere", "/"])
async def test_an_unknown_path_is_not_found(server: ServingServer, path: str) -> None:
    """An unknown path gets a 404 problem document with a key, and 401 without one."""
    answer = await server.admin("GET", path)

    assert (answer.status, answer.problem["code"]) == (404, "unknown")
    assert (await server.request("GET", f"/admin/v1{path}")).status == 401


async def test_a_change_that_began_is_finished_without_its_client(server: ServingServer) -> None:
    """A removal completes in store and memory although its client left."""
    deploys = server.server.deploys
    removed = asyncio.Event()
    end = server.server.store.catalog.subscribe(lambda _change: removed.set())
    with locked(server.server.store.settings.database):
        removing = asyncio.create_task(server.admin("DELETE", "/functions/digits"))
        await until(lambda: len(deploys.runner._names.get("digits", ())) == 1)
        removing.cancel()
        await asyncio.wait([removing])
        await server.get("/healthz")

    async with asyncio.timeout(60):
        await removed.wait()
    end()
    assert server.server.store.catalog.all() == ()
    assert await server.server.store.functions.load_all() == []


async def test_a_change_is_answered_when_every_gateway_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is answered after every gateway process has it; a read does not wait for them."""
    asked: list[int] = []

    async def settled(_hub: Hub) -> None:
        asked.append(len(server.server.store.ring.all()))

    monkeypatch.setattr(Hub, "settled", settled)
    async with serving(tmp_path, FakeDriver()) as server:
        assert (await server.admin("GET", "/keys")).status == 200
        assert asked == []
        assert (await server.admin("POST", "/keys", {"scopes": ["read"]})).status == 201
        assert (await server.admin("POST", "/keys", {"scopes": ["nonsense"]})).status == 400

    assert asked == [2]  # the key and the admin token


async def test_readyz_and_beat_have_the_same_reasons(server: ServingServer) -> None:
    """/readyz and the beat event have the same reasons."""
    admin = server.server.admin

    assert admin.reader.beat().readyz.reasons == admin.reasons() == []
    assert (await server.get("/readyz")).json()["reasons"] == []


async def test_the_side_is_of_one_server(server: ServingServer) -> None:
    """The admin API uses the store and the manager of the gateway's server."""
    context = server.server.admin.context

    assert (context.store, context.manager) == (server.server.store, server.server.manager)
