"""Functions as they are now."""

from __future__ import annotations

import time

from tests.support.followed import following
from tests.support.server import ServingServer

CALL = {"inputs": {}}


async def test_a_line_says_when_an_idle_function_sleeps(server: ServingServer) -> None:
    """In Unix seconds; a cold one sleeps already."""
    rows = server.server.admin.rows
    deployed = server.server.store.catalog.resolve("digits")
    cold = rows.row(deployed, rows.gateways.loads())
    assert (await server.call("digits", CALL)).status == 200

    async with following(server) as told:
        while (warm := await told.line("digits", state="warm"))["sleeps_at_s"] is None:
            pass

    assert (cold["sleeps_at_s"], cold["devices"]) == (None, [])
    assert 0 < warm["sleeps_at_s"] - time.time() <= warm["idle_s"] + 0.1
    assert len(warm["devices"]) == 1
