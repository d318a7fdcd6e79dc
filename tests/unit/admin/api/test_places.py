from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack

import pytest
from aiohttp import ClientSession

from admin.api import streaming
from admin.api.places import Places
from gateway.admission.access import Caller
from registry.errors import QueueFull
from tests.support.server import ServingServer

ADMIN = Caller("a", ("invoke", "admin"))


def fill(places: Places, caller: Caller, stack: ExitStack) -> int:
    """Take places until the caller is refused; return their number."""
    for count in range(1000):
        try:
            stack.enter_context(places.taken(caller))
        except QueueFull:
            return count
    raise AssertionError("expected a limit")


def test_other_keys_do_not_take_an_administrators_places() -> None:
    """However many keys there are, an administrator finds as many places as without them, and
    another key finds one; what is given back is free."""
    places = Places("streams are open", 16)
    with ExitStack() as stack:
        taken = [fill(places, Caller(str(number), ("read",)), stack) for number in range(4)]
        assert taken == [8, 4, 2, 1]
        assert fill(places, ADMIN, stack) == 8
    with ExitStack() as stack:
        assert fill(places, Caller("0", ("read",)), stack) == 8


@pytest.mark.parametrize(
    ("path", "most"), [("/events", 100), ("/functions/digits/logs", streaming.STREAMS_MAX)]
)
async def test_a_key_with_scope_read_does_not_shut_others_out(
    server: ServingServer, path: str, most: int
) -> None:
    """It gets half of the streams, then 429; another key and the admin token get theirs, and plain
    requests are answered."""
    keys = [
        (await server.admin("POST", "/keys", {"scopes": ["read"]})).json()["secret"]
        for _ in range(2)
    ]
    async with ClientSession() as session, AsyncExitStack() as stack:

        async def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
            answer = await session.get(f"{server.url}/admin/v1{path}", headers=headers)
            stack.callback(answer.close)
            return answer.status

        assert [await status(keys[0]) for _ in range(most // 2 + 1)] == [200] * (most // 2) + [429]
        assert await status(keys[1]) == 200
        assert await status(server.token) == 200
        for token in (*keys, server.token):
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{server.url}/admin/v1/functions", headers=headers) as plain:
                assert plain.status == 200
