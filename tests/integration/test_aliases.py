"""Aliases of models by fnctl, on a real server with one gateway process and with several."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support import chat_server
from tests.support.process_server import FNCTL, ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ASKS = 12
"""Requests on connections of their own: the kernel spreads them over the gateway processes."""


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the models `one` and `two`."""
    workers = getattr(request, "param", "1")
    with server_process(tmp_path / "data", "--workers", workers) as server:
        for name in ("one", "two"):
            chat_server.deploy(server, tmp_path / "apps", name)
        yield server


async def chat(server: ServerProcess, model: str) -> tuple[int, str]:
    """Return the status of a chat with a model, and the function that answered."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.post("/v1/chat/completions", json=body) as answer,
    ):
        return answer.status, answer.headers.get("Fn-Revision", "").partition("@")[0]


async def answered(server: ServerProcess, model: str) -> set[tuple[int, str]]:
    """Return how all gateway processes answer."""
    return {await chat(server, model) for _ in range(ASKS)}


def aliases(server: ServerProcess, *words: str) -> dict[str, str]:
    items: list[dict[str, Any]] = server.fnctl_json("alias", "ls", *words)["items"]
    return {one["alias"]: one["function"] for one in items}


@pytest.mark.parametrize("server", ["1", "2"], ids=["one-process", "workers"], indirect=True)
async def test_the_life_of_aliases(server: ServerProcess, tmp_path: Path) -> None:
    """They are models in every gateway process at once, keep through redeploys, rollbacks and a
    restart, move with the operator alone, and go with their function."""
    for name, alias in (("one", "gpt-4o"), ("one", "org/m:7b"), ("two", "b")):
        server.fnctl_json("alias", "add", name, alias)
    assert aliases(server) == {"gpt-4o": "one", "org/m:7b": "one", "b": "two"}
    assert await answered(server, "org/m:7b") == {(200, "one")}
    assert "gpt-4o, org/m:7b" in server.fnctl("show", "one").stdout

    refused = server.fnctl("alias", "add", "two", "gpt-4o")
    assert refused.returncode != 0
    assert "gpt-4o is an alias of one" in refused.stderr

    chat_server.deploy(server, tmp_path / "apps", "one", "--rate", "500")
    server.fnctl_json("rollback", "one")
    assert aliases(server, "one") == {"gpt-4o": "one", "org/m:7b": "one"}
    server.stop()
    server.start()
    assert await answered(server, "gpt-4o") == {(200, "one")}

    server.fnctl_json("alias", "rm", "gpt-4o")
    assert await answered(server, "gpt-4o") == {(404, "")}
    server.fnctl_json("alias", "add", "two", "gpt-4o")
    assert await answered(server, "gpt-4o") == {(200, "two")}
    server.fnctl_json("rm", "two", "--yes")
    assert await answered(server, "gpt-4o") == {(404, "")}
    assert aliases(server) == {"org/m:7b": "one"}


async def test_a_function_is_not_deployed_under_an_alias(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The refusal names the function that has the name."""
    server.fnctl_json("alias", "add", "one", "taken")

    refused = server.fnctl("deploy", str(chat_server.bundle(tmp_path, "taken")), "--trust")

    assert refused.returncode != 0
    assert "taken is an alias of one" in refused.stderr
    assert await answered(server, "taken") == {(200, "one")}


def test_of_two_at_once_one_wins(server: ServerProcess) -> None:
    """The other verb fails and names the winner."""
    running = [
        subprocess.Popen(
            [FNCTL, "alias", "add", name, "m"],
            env={"PATH": "/usr/bin:/bin", "FN_URL": server.url, "FN_DATA": str(server.data)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    said = [process.communicate(timeout=60) for process in running]

    won = {name: one.returncode == 0 for name, one in zip(("one", "two"), running, strict=True)}
    assert sorted(won.values()) == [False, True], said
    (winner,) = [name for name, has_won in won.items() if has_won]
    assert any(f"m is an alias of {winner}" in errors for _, errors in said)
    assert aliases(server) == {"m": winner}


async def test_a_copy_has_the_aliases(server: ServerProcess, tmp_path: Path) -> None:
    """A restored server has them, and they are as unique as before."""
    server.fnctl_json("alias", "add", "one", "m")
    copy = tmp_path / "copy.db"
    assert server.fnctl("backup", str(copy)).returncode == 0
    server.fnctl_json("alias", "rm", "m")
    server.fnctl_json("alias", "add", "two", "later")
    server.stop()

    done = server.fnctl("restore", str(copy), "--data", str(server.data), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    server.start()

    assert aliases(server) == {"m": "one"}
    assert server.fnctl("alias", "add", "two", "m").returncode != 0
    assert await answered(server, "m") <= {(200, "one"), (401, "")}
