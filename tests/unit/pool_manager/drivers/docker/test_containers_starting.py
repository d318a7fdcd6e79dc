"""How one container is started, or nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import docker
import pytest

from pool_manager.drivers.docker.containers import Start, Started, begin
from pool_manager.drivers.docker.spec import OWNER, by_cdi, by_request, by_runtime
from registry.errors import DriverError, EngineDown
from tests.support.containers import Recorder, refusal
from tests.support.engine import remove_container

NO_CDI = 'could not select device driver "cdi" with capabilities: []'
NO_DRIVER = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
CONFIG: dict[str, Any] = {"HostConfig": {"NetworkMode": "none"}}


def start(holder: str | None = None, gpus: tuple[str, ...] = ()) -> Start:
    return Start("a name", CONFIG, holder, gpus, (by_cdi, by_request, by_runtime))


def test_a_plain_start() -> None:
    """Created under its name, then started."""
    client = Recorder()

    assert begin(client.api, start()) == Started("c1", None)
    assert client.done == ["create a name", "start c1"]


def test_the_next_way_to_a_gpu() -> None:
    """A way that the engine does not know leaves nothing and the next one is tried."""
    client = Recorder(start=[refusal(500, NO_CDI), refusal(500, NO_DRIVER)])

    assert begin(client.api, start(gpus=("GPU-1",))) == Started("c3", by_runtime)
    assert client.done == [
        "create a name",
        "start c1",
        "remove c1",
        "create a name",
        "start c2",
        "remove c2",
        "create a name",
        "start c3",
    ]


def test_no_way_to_a_gpu() -> None:
    """If no way to a GPU works, the error contains all messages of the engine."""
    runtime = refusal(400, "Unknown runtime specified nvidia")
    client = Recorder(start=[refusal(500, NO_CDI), refusal(500, NO_DRIVER), runtime])

    with pytest.raises(
        DriverError, match=r"^GPU GPU-1 is not available to containers: .*cdi.*nvidia.*runtime"
    ):
        begin(client.api, start(gpus=("GPU-1",)))

    assert client.left == set()


def test_what_is_wrong_with_any_way_is_tried_once() -> None:
    """An error unrelated to the way, like a missing image, is not retried with other ways."""
    client = Recorder(create=[refusal(404, "No such image: x")])

    with pytest.raises(DriverError, match=r"^cannot start a container: .* No such image: x"):
        begin(client.api, start(gpus=("GPU-1",)))

    assert client.done == ["create a name"]


@pytest.mark.parametrize(
    "error",
    [
        refusal(409, "cannot join network of a non running container: h1"),
        refusal(404, "No such container: h1"),
    ],
)
@pytest.mark.parametrize("step", ["create", "start"])
def test_a_holder_that_has_ended(error: Exception, step: str) -> None:
    """If the holder has ended, the first container is removed and one with its own network is
    started."""
    client = Recorder(**{step: [error]})

    begin(client.api, start("h1"))

    assert client.modes == ["container:h1", "none"]
    assert len(client.left) == 1


def test_an_engine_that_goes_away() -> None:
    """If the cleanup fails too, the first error is raised and the container is left for the next
    list."""
    lost = docker.errors.DockerException("gone")
    client = Recorder(start=[lost], remove=[lost])

    with pytest.raises(EngineDown, match="cannot start a container: gone"):
        begin(client.api, start())


@pytest.fixture
def api(engine: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=engine, version="1.41")
    yield client
    for one in client.containers(all=True, filters={"label": f"{OWNER}=test-starting"}):
        remove_container(client, one["Id"])
    client.close()


@pytest.mark.docker
@pytest.mark.slow
def test_a_real_holder_that_has_ended(api: docker.APIClient, runtime_image: str) -> None:
    """A real engine starts it with its own network, under the same name."""
    config = {
        "Image": runtime_image,
        "Entrypoint": ["sleep"],
        "Cmd": ["600"],
        "Labels": {OWNER: "test-starting"},
        "HostConfig": {"NetworkMode": "none"},
    }
    holder = api.create_container_from_config(config)["Id"]

    for held in (holder, "0123456789ab"):
        begun = begin(api, Start(f"test-starting-{held}", config, held, "", ()))

        shown = api.inspect_container(begun.container)
        assert shown["State"]["Running"]
        assert shown["HostConfig"]["NetworkMode"] == "none"


@pytest.mark.docker
@pytest.mark.slow
def test_a_real_program_that_is_missing(api: docker.APIClient, runtime_image: str) -> None:
    """A container that a real engine created but could not start is removed."""
    config = {
        "Image": runtime_image,
        "Entrypoint": ["/nope"],
        "Labels": {OWNER: "test-starting"},
        "HostConfig": {"NetworkMode": "none"},
    }

    with pytest.raises(DriverError, match=r'exec: "/nope"'):
        begin(api, Start("test-starting-nope", config, None, "", ()))

    assert api.containers(all=True, filters={"label": f"{OWNER}=test-starting"}) == []
