"""Tests of tickets over the admin API."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pages.tickets import PER_KEY_MAX
from tests.support.caller import Answer
from tests.support.nouns import server_deployed
from tests.support.server import ServingServer

TICKETS = "/admin/v1/functions/web/tickets"


@pytest.fixture
def web(server: ServingServer) -> ServingServer:
    """A server with the server function `web`."""
    server.server.store.catalog.put(server_deployed())
    return server


async def post(server: ServingServer, key: str, body: Any = None, path: str = TICKETS) -> Answer:
    """Ask for a ticket with a key."""
    return await server.request("POST", path, body, {"Authorization": f"Bearer {key}"})


async def add_key(server: ServingServer, scope: str) -> str:
    """Return the secret of a new key."""
    answer = await server.admin("POST", "/keys", {"scopes": [scope]})
    return str(answer.json()["secret"])


@pytest.mark.parametrize("scope", ["invoke", "invoke:web", "admin"])
async def test_a_caller_gets_a_ticket(web: ServingServer, scope: str) -> None:
    """It is for the caller's key and the path; the address has it in its fragment."""
    key = await add_key(web, scope)
    answer = await post(web, key, {"path": "/lab?x"})

    given = answer.json()
    port = web.server.url.rpartition(":")[2]
    assert answer.status == 201
    assert answer.headers["Cache-Control"] == "no-store"
    assert given["address"] == f"web.localhost:{port}/.fngate/enter#{given['ticket']}"
    assert given["expires_s"] == 60
    ticket = web.server.admin.context.tickets.redeem(given["ticket"], "web")
    assert ticket is not None
    caller = web.gateway.invoker.access.callers.with_secret(key)
    assert caller is not None
    assert (ticket.key_id, ticket.path) == (caller.id, "/lab?x")


@pytest.mark.parametrize(
    ("scope", "status"), [("read", 403), ("deploy", 403), ("invoke:digits", 403)]
)
async def test_other_keys_get_none(web: ServingServer, scope: str, status: int) -> None:
    """A ticket grants calls, so it needs the scope for them."""
    assert (await post(web, await add_key(web, scope))).status == status
    assert len(web.server.admin.context.tickets) == 0


async def test_nobody_gets_none(web: ServingServer) -> None:
    """Also while anyone on this machine may call: a ticket is a key's."""
    assert (await web.request("POST", TICKETS)).status == 401
    assert (await web.call("digits", {"inputs": {}})).status == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (TICKETS, {"path": "//evil.example"}, 400),
        (TICKETS, {"path": 1}, 400),
        (TICKETS, {"key": "x"}, 400),
        (TICKETS, "/lab", 400),
        (TICKETS.replace("web", "digits"), None, 400),
        (TICKETS.replace("web", "web@1"), None, 400),
        (TICKETS.replace("web", "nobody"), None, 404),
    ],
)
async def test_bad_requests(web: ServingServer, path: str, body: Any, status: int) -> None:
    """Paths elsewhere, unknown fields, models, revisions, and no function at all."""
    assert (await post(web, web.token, body, path)).status == status


async def test_the_number_of_tickets_is_bounded(web: ServingServer) -> None:
    """A key that asks again and again has PER_KEY_MAX at most."""
    for _ in range(PER_KEY_MAX + 3):
        assert (await post(web, web.token)).status == 201

    assert len(web.server.admin.context.tickets) == PER_KEY_MAX


async def test_why_of_a_server_names_its_connections(web: ServingServer) -> None:
    """Nobody is connected; of a model nothing is said."""
    why = (await web.admin("GET", "/functions/web/why")).json()

    assert (why["connected"], why["awake"]) == ([], "")
    assert why["connections"] == {"counting": 0, "free": 0}
    assert "connected" not in (await web.admin("GET", "/functions/digits/why")).json()
