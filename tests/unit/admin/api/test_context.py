"""What the operator's side of a server works with."""

from __future__ import annotations

from tests.support.server import ServingServer


async def test_the_side_is_of_one_server(server: ServingServer) -> None:
    """The same store and manager as the gateway's."""
    context = server.server.admin.context

    assert (context.store, context.manager) == (server.server.store, server.server.manager)
    assert context.gateways is server.server.delivery
