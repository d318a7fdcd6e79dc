"""Tests of environments over the admin API; tests/e2e has them with functions."""

from __future__ import annotations

import pytest

from tests.support.server import ServingServer

PATH = "/admin/v1/environments"


async def test_a_server_without_environments(server: ServingServer) -> None:
    """The list is empty, nothing is removed, and no name means one."""
    assert (await server.admin("GET", "/environments")).json() == {"items": [], "next": None}
    assert (await server.admin("POST", "/environments/prune")).json() == {"removed": []}
    for method in ("GET", "DELETE"):
        answer = await server.admin(method, "/environments/3f9c")
        assert (answer.status, answer.problem["code"]) == (404, "unknown")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PATH, 200),
        ("GET", f"{PATH}/3f9c", 404),
        ("DELETE", f"{PATH}/3f9c", 403),
        ("POST", f"{PATH}/prune", 403),
    ],
)
async def test_only_administrators_remove(
    server: ServingServer, method: str, path: str, status: int
) -> None:
    """Others with the scope read see."""
    made = await server.admin("POST", "/keys", {"scopes": ["deploy", "read"]})
    bearer = {"Authorization": f"Bearer {made.json()['secret']}"}

    assert (await server.request(method, path, None, bearer)).status == status
