"""The admin API, put together."""

from __future__ import annotations

from tests.support.server import ServingServer


async def test_what_is_wrong_is_told_in_one_voice(server: ServingServer) -> None:
    """/readyz and the beat have the same reasons."""
    admin = server.server.admin

    assert admin.reader.beat()["readyz"]["reasons"] == admin.reasons() == []
    assert (await server.get("/readyz")).json()["reasons"] == []
