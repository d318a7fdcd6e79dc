"""Tests of images as functions through a whole server over containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.docker.spec import PART, SERVER, SIDECAR
from tests.support.container_server import ContainerServer, container_server, until
from tests.support.engine import connected
from tests.support.web_servers import make_web_image

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

MANIFEST = """
schema = 1
name = "web"
[server]
image = "{image}"
port = 8000
ready = "/"
[server.env]
GREETING = "at ${{PORT}}"
[limits]
drain_s = 5.0
"""


@pytest.fixture
def server(engine: str, runtime_image: str, tmp_path: Path) -> Iterator[ContainerServer]:
    """A server with the function `web`, cold."""
    id = make_web_image(engine, runtime_image)
    with connected(engine) as client:
        [tag, *_] = client.api.inspect_image(id)["RepoTags"]
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "function.toml").write_text(MANIFEST.format(image=tag))
    (folder / "app.py").write_text("an application")
    with container_server(tmp_path / "data", engine, runtime_image) as server:
        done = server.fnctl("deploy", str(folder))
        assert done.returncode == 0, done.stderr
        assert "memory  0 MiB" not in done.stdout
        yield server


async def facts(server: ContainerServer) -> dict[str, Any]:
    """Return what the server of the image sees."""
    async with server.session() as http, http.get("/fn/web/facts") as answer:
        assert answer.status == 200, await answer.read()
        seen: dict[str, Any] = json.loads(await answer.read())
        return seen


def parts(server: ContainerServer) -> dict[str, dict[str, Any]]:
    """Return the containers of the function's replicas by part."""
    found = [one for one in server.everything() if one["Config"]["Labels"].get(PART)]
    return {one["Config"]["Labels"][PART]: one for one in found}


async def test_an_image_is_woken_by_a_call_and_sleeps(server: ContainerServer) -> None:
    """A call starts both containers; an idle replica's are both removed; the log has what the
    server wrote from its first to its last word."""
    until(lambda: not parts(server), "a container of the trial is still there")
    seen = await facts(server)
    assert seen["environment"]["GREETING"] == "at 8000"
    assert list(seen["files"]) == ["app.py"]
    assert set(parts(server)) == {SIDECAR, SERVER}

    assert server.fnctl("scale", "web", "--idle", "0.2").returncode == 0
    until(lambda: not parts(server), "a container of an idle replica is still there")

    log = server.fnctl("logs", "web").stdout
    assert "hello from the server" in log
    assert "fngate: GET /: 200 OK" in log
    assert "bye at SIGUSR1" in log
    assert (await facts(server))["environment"]["GREETING"] == "at 8000"


async def test_a_killed_server_finds_both_containers_again(server: ContainerServer) -> None:
    """The next one adopts them; the answer is warm."""
    await facts(server)
    before = {part: one["Id"] for part, one in parts(server).items()}

    server.kill()
    server.start()
    await facts(server)

    assert {part: one["Id"] for part, one in parts(server).items()} == before


@pytest.mark.parametrize("part", [SIDECAR, SERVER])
async def test_a_call_after_a_containers_death_is_answered(
    server: ContainerServer, part: str, engine: str
) -> None:
    """By another replica."""
    await facts(server)
    before = parts(server)[part]["Id"]
    with connected(engine) as client:
        client.api.kill(before)

    until(
        lambda: before not in [one["Id"] for one in server.everything()],
        "a replica of which one container was killed is not released",
    )
    await facts(server)

    assert parts(server)[part]["Id"] != before


async def test_a_stopped_server_leaves_nothing(server: ContainerServer) -> None:
    """Neither of the containers outlives it."""
    await facts(server)

    assert server.stop() == 0
    assert server.everything() == []
