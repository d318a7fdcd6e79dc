"""Tests of images as functions over a real engine: pulled, pinned, with mounts and secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from admin.settings import Settings
from pool_manager.drivers.docker.spec import OWNER, owner_name
from pool_manager.image_names import PINNED
from tests.support.engine import connected
from tests.support.registry import Registry, registry
from tests.support.server import ServingServer, serving
from tests.support.web_servers import make_web_image

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("forgotten_sockets"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

VALUE = "hunter2-9f0c ${PORT}"
MANIFEST = """
schema = 1
[server]
image = "{reference}"
port = 8000
[server.mounts]
models = "{source}:/mnt"
[server.secrets]
TOKEN = "hf"
"""


class OnDocker(Settings):
    """Settings of a server whose replicas are containers."""

    driver: Literal["process", "docker"] = "docker"


@pytest.fixture
def pushed(engine: str, runtime_image: str, tmp_path: Path) -> Iterator[tuple[Registry, str]]:
    """A registry with the web server's image."""
    image = make_web_image(engine, runtime_image)
    with registry(engine, tmp_path) as made:
        yield made, made.push(image, "team/web:1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "srv" / "models"
    folder.mkdir(parents=True)
    (folder / "weights").touch()
    return folder


@pytest.fixture
async def server(
    engine: str, runtime_image: str, tmp_path: Path, source: Path
) -> AsyncIterator[ServingServer]:
    settings = {"docker_host": engine, "image_cpu": runtime_image, "cpu_slots": 2}
    roots = (str(source.parent),)
    async with serving(
        tmp_path, kind=OnDocker, standbys=0, gpus="none", mount_roots=roots, **settings
    ) as server:
        yield server


def tags(engine: str) -> list[str]:
    with connected(engine) as client:
        return [tag for one in client.api.images(name=PINNED) for tag in one["RepoTags"]]


def environments(engine: str, owner: str) -> list[tuple[str, list[str]]]:
    """Return name and variables of all containers of a server."""
    with connected(engine) as client:
        listed = client.api.containers(all=True, filters={"label": f"{OWNER}={owner}"})
        found = [client.api.inspect_container(one["Id"]) for one in listed]
    return [(one["Name"], one["Config"]["Env"]) for one in found]


def become_link(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"))


async def facts(server: ServingServer) -> dict[str, Any]:
    answer = await server.get("/fn/web/facts")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


async def test_an_image_is_a_function(
    engine: str,
    server: ServingServer,
    pushed: tuple[Registry, str],
    source: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The image is pulled and pinned; the server has its mount and its secret, which is in one
    container's variables and nowhere of ours. A source that became a link is refused at the next
    start. The pin goes with the function; a prune leaves an image that has a name of its own, or
    that another server uses."""
    _, reference = pushed
    owner = owner_name((tmp_path / "data").resolve())
    await server.admin("POST", "/secrets", {"name": "hf", "value": VALUE})
    manifest = MANIFEST.format(reference=reference, source=source)

    result = await server.deploy({"app.txt": b""}, name="web", manifest=manifest)

    found = result["server"]
    assert found["image"]["digest"].startswith(reference.removesuffix(":1"))
    assert found["hidden"] == ["/data"]
    id = found["image"]["id"].removeprefix("sha256:")
    assert f"{PINNED}:{id}.{owner}" in tags(engine)
    seen = await facts(server)
    assert (seen["environment"]["TOKEN"], seen["mounted"]) == (VALUE, ["weights"])
    having = [one for one in environments(engine, owner) if any(VALUE in text for text in one[1])]
    assert len(having) == 1

    become_link(source)
    await server.until(lambda: _sleeps(server))
    warm = await server.admin("POST", "/functions/web/warm?wait=60")
    assert warm.status == 503
    assert f"expected {source} as deployed, got a link to" in warm.problem["detail"]

    for path in ("/functions/web", "/functions/web/why", "/operations", "/secrets", "/replicas"):
        assert VALUE.encode() not in (await server.admin("GET", path)).body
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if VALUE.encode() in path.read_bytes()] == []
    said = capfd.readouterr()
    assert VALUE not in said.out + said.err

    await server.admin("DELETE", "/functions/web")
    assert (await server.admin("POST", "/images/prune")).json() == {"removed": []}
    assert [tag for tag in tags(engine) if tag.endswith(owner)] == []


async def _sleeps(server: ServingServer) -> bool:
    answer = (await server.admin("POST", "/functions/web/sleep")).json()
    return not answer["asked"] and not answer["stay"]
