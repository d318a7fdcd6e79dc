"""Who may call without a key, over restarts and in every gateway process."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.support.fake_driver.opening import PROGRAM
from tests.support.process_server import ServerProcess, server_process

AT_ONCE = 8
"""Connections, so that every gateway process gets some."""


async def statuses(server: ServerProcess, path: str, **headers: str) -> set[int]:
    """Return the statuses of requests over connections of their own."""
    found = set()
    for _ in range(AT_ONCE):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server.url}{path}", headers=headers) as answer,
        ):
            found.add(answer.status)
    return found


@pytest.mark.slow  # whole processes
@pytest.mark.parametrize("workers", [1, 2])
async def test_closed_stays_closed(tmp_path: Path, workers: int) -> None:
    """In every process at once: what a proxy passes on is refused, the first key closes, neither
    its end nor a restart opens, `fnctl access open` does, and a trusted proxy closes again. A
    replaced admin token is refused."""
    data, options = tmp_path / "data", ("--workers", str(workers))
    with server_process(data, *options, program=PROGRAM) as server:
        assert await statuses(server, "/fn/f") == {404}
        assert await statuses(server, "/metrics") == {200}
        for path in ("/fn/f", "/metrics", "/v1/models"):
            assert await statuses(server, path, Via="1.1 edge") == {401}
        assert server.fnctl("key", "add", "--scope", "invoke").returncode == 0
        assert await statuses(server, "/fn/f") == {401}
        (key,) = server.fnctl_json("key", "ls")["items"]
        assert server.fnctl("key", "rm", key["id"]).returncode == 0
        assert await statuses(server, "/fn/f") == {401}

        bearer = f"Bearer {server.token}"
        assert await statuses(server, "/v2", Authorization=bearer) == {200}
        assert server.fnctl("access", "rotate-admin").returncode == 0
        assert await statuses(server, "/v2", Authorization=bearer) == {401}
        assert server.fnctl_json("access", "status")["openness"] == "closed"
    with server_process(data, *options, program=PROGRAM) as server:
        assert await statuses(server, "/fn/f") == {401}
        assert server.fnctl("access", "open").returncode == 0
        assert await statuses(server, "/fn/f", Via="1.1 edge") == {404}
    with server_process(data, *options, program=PROGRAM) as server:
        assert await statuses(server, "/fn/f", Via="1.1 edge") == {404}
    proxies = {"FN_TRUSTED_PROXIES": "127.0.0.1"}
    with server_process(data, *options, environment=proxies, program=PROGRAM) as server:
        assert await statuses(server, "/fn/f") == {401}
