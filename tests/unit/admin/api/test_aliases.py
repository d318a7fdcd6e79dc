"""Tests of aliases over the admin API, with servers of the fake driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from registry.names import ALIAS_MAX
from tests.support.fake_driver.driver import FakeDriver
from tests.support.server import ServingServer, serving

MANIFEST = """
schema = 1
[server]
command = "serve ${PORT}"
[openai]
"""
FILES = {"app.py": b"app"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """Serve the models `one` and `two`."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        for name in ("one", "two"):
            await server.deploy(FILES, name=name, manifest=MANIFEST)
        yield server


async def add(server: ServingServer, function: str, alias: str) -> Any:
    return await server.admin("POST", "/aliases", {"function": function, "alias": alias})


async def models(server: ServingServer) -> list[str]:
    answer = await server.get("/v1/models")
    return [one["id"] for one in answer.json()["data"]]


async def listed(server: ServingServer, query: str = "") -> list[tuple[str, str]]:
    items = (await server.admin("GET", f"/aliases{query}")).json()["items"]
    return [(one["alias"], one["function"]) for one in items]


async def test_an_alias_is_added_listed_shown_and_removed(server: ServingServer) -> None:
    """It is a model at /v1 for as long; a second request for it changes nothing."""
    made = await add(server, "one", "org/m:7b")
    assert (made.status, made.json()) == (
        201,
        {"alias": "org/m:7b", "function": "one", "created": True},
    )
    again = await add(server, "one", "org/m:7b")
    assert (again.status, again.json()["created"]) == (200, False)

    assert await listed(server) == [("org/m:7b", "one")]
    assert (await server.admin("GET", "/functions/one")).json()["aliases"] == ["org/m:7b"]
    assert await models(server) == ["one", "org/m:7b", "two"]
    assert (await server.get("/v1/models/org/m:7b")).status == 200

    removed = await server.admin("DELETE", "/aliases?alias=org/m:7b")
    assert removed.json() == {"removed": "org/m:7b", "function": "one"}
    assert (await server.admin("DELETE", "/aliases?alias=org/m:7b")).status == 404
    assert await models(server) == ["one", "two"]


async def test_lists_are_paged_by_function(server: ServingServer) -> None:
    """Pages of any size have all aliases once; one function's can be asked for."""
    wanted = [("a", "one"), ("z" * ALIAS_MAX, "one"), ("b", "two"), ("c", "two")]
    for alias, function in wanted:
        assert (await add(server, function, alias)).status == 201

    for limit in (1, 2, 3, 4, 5):
        found, following = [], ""
        while True:
            page = await server.admin("GET", f"/aliases?limit={limit}&next={following}")
            found += [(one["alias"], one["function"]) for one in page.json()["items"]]
            following = page.json()["next"]
            if following is None:
                break
        assert found == wanted
    assert await listed(server, "?function=two") == wanted[2:]
    assert await listed(server, "?function=two&next=one@a") == wanted[2:]
    assert await listed(server, "?function=one&next=one@b") == wanted[1:2]
    assert await listed(server, "?function=one&next=two@b") == []
    assert (await server.admin("GET", "/aliases?function=three")).status == 404


async def test_names_are_unique(server: ServingServer) -> None:
    """An alias is neither another function's name nor alias; the refusal names the function."""
    await add(server, "one", "m")

    for alias, owner in (("m", "one"), ("one", "one"), ("two", "two")):
        refused = await add(server, "two", alias)
        assert (refused.status, refused.problem["function"]) == (409, owner)
    assert await listed(server) == [("m", "one")]


async def test_of_two_requests_at_once_one_wins(server: ServingServer) -> None:
    """The other gets 409."""
    answers = await asyncio.gather(*(add(server, name, "m") for name in ("one", "two")))

    assert sorted(one.status for one in answers) == [201, 409]
    (winner,) = [one.json()["function"] for one in answers if one.status == 201]
    assert await listed(server) == [("m", winner)]


async def test_a_deploy_under_an_alias_is_refused_before_a_trial(server: ServingServer) -> None:
    """No operation begins, so nothing is loaded for nothing; the refusal names the function."""
    await add(server, "one", "m")

    refused = await server.try_deploy(FILES, name="m", manifest=MANIFEST)

    assert (refused.status, refused.problem["function"]) == (409, "one")
    assert "m is an alias of one" in refused.problem["detail"]
    operations = (await server.admin("GET", "/operations")).json()["items"]
    assert {one["name"] for one in operations} == {"one", "two"}


async def test_deploys_rollbacks_and_removals(server: ServingServer) -> None:
    """A redeploy and a rollback keep an alias; it goes with its function and is free then."""
    await add(server, "one", "m")
    await server.deploy({"app.py": b"new"}, name="one", manifest=MANIFEST)
    assert await listed(server) == [("m", "one")]
    rolled = await server.admin("POST", "/functions/one/rollback", {})
    assert rolled.status == 202
    assert (await server.ended(rolled.json())).json()["state"] == "done"
    assert await listed(server) == [("m", "one")]

    await server.admin("DELETE", "/functions/one")
    assert await listed(server) == []
    assert (await add(server, "two", "m")).status == 201
    assert (await add(server, "two", "one")).status == 201


@pytest.mark.parametrize(
    "body",
    [
        {"function": "one"},
        {"function": "one", "alias": 7},
        {"function": "one", "alias": ""},
        {"function": "one", "alias": "a b"},
        {"function": "one", "alias": "a@1"},
        {"function": "one", "alias": "a" * (ALIAS_MAX + 1)},
        {"function": "one@1", "alias": "a"},
        {"function": "one", "alias": "a", "more": 1},
    ],
)
async def test_bad_requests_are_refused(server: ServingServer, body: dict[str, object]) -> None:
    """400, and nothing has changed."""
    assert (await server.admin("POST", "/aliases", body)).status == 400
    assert await listed(server) == []


async def test_changes_need_the_scope_deploy(server: ServingServer) -> None:
    """A key with the scope read may list, and no more; without one there is nothing."""
    made = await server.admin("POST", "/keys", {"scopes": ["read"]})
    bearer = {"Authorization": f"Bearer {made.json()['secret']}"}
    body = {"function": "one", "alias": "m"}

    assert (await server.request("GET", "/admin/v1/aliases", None, bearer)).status == 200
    for method, path in (("POST", "/aliases"), ("DELETE", "/aliases?alias=m")):
        answer = await server.request(method, f"/admin/v1{path}", body, bearer)
        assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")
    assert (await server.request("GET", "/admin/v1/aliases")).status == 401
