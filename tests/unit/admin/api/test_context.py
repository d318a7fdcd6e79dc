"""What the operator's side of a server works with."""

from __future__ import annotations

from tests.support.server import ServingServer


async def test_the_side_is_of_one_server(server: ServingServer) -> None:
    """The same store and manager as the gateway's."""
    side = server.server.admin.side

    assert (side.store, side.manager) == (server.server.store, server.server.manager)
    assert side.held is server.server.delivery
