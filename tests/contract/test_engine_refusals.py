"""Contract tests of a real engine's refusals, as docker-py reports them.

The driver distinguishes these. The tests run their own engine, because the shared one may know
NVIDIA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from tests.support.engine import connected, make_small_image
from tests.support.own_engine import OwnEngine

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGE = "fngate-small:latest"
GPU = {"driver": "nvidia", "device_ids": ["0"]}
CREATE: dict[str, tuple[dict[str, Any], type[APIError], int, str]] = {
    "missing image": ({"image": "nope:1"}, ImageNotFound, 404, r"^No such image: nope:1$"),
    "bad image name": ({"image": "NOPE"}, APIError, 400, r"^invalid reference format"),
    "unknown runtime": (
        {"runtime": "nvidia"},
        APIError,
        400,
        r"^Unknown runtime specified nvidia$",
    ),
    "missing bind source": (
        {"mounts": [Mount("/x", "/nope", type="bind")]},
        APIError,
        400,
        r'^invalid mount config for type "bind": bind source path does not exist: /nope$',
    ),
    "too little memory": (
        {"mem_limit": "5m"},
        APIError,
        400,
        r"^Minimum memory limit allowed is 6MB$",
    ),
    "too many cpus": (
        {"nano_cpus": 10**13},
        APIError,
        400,
        r"^Range of CPUs is from 0\.01 to \d+\.00, as there are only \d+ CPUs available$",
    ),
    "no such cpu": (
        {"cpuset_cpus": "8191"},
        APIError,
        400,
        r"^Requested CPUs are not available - requested 8191, available: ",
    ),
}
"""Settings that `create` refuses."""
START: dict[str, tuple[dict[str, Any], type[APIError], int, str]] = {
    "no device driver": (
        {"device_requests": [DeviceRequest(**GPU, capabilities=[["gpu"]])]},
        APIError,
        500,
        r'^could not select device driver "nvidia" with capabilities: \[\[gpu\]\]$',
    ),
    "no device driver named": (
        {"device_requests": [DeviceRequest(count=-1, capabilities=[["gpu", "compute"]])]},
        APIError,
        500,
        r'^could not select device driver "" with capabilities: \[\[gpu compute\]\]$',
    ),
    "no cdi": (
        {"device_requests": [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=0"])]},
        APIError,
        500,
        r'^could not select device driver "cdi" with capabilities: \[\]$',
    ),
    "missing device": (
        {"devices": ["/dev/nope"]},
        APIError,
        500,
        r'adding custom device "/dev/nope": no such file or directory$',
    ),
    "missing program": (
        {"command": ["/nope"]},
        APIError,
        400,
        r'exec: "/nope": stat /nope: no such file or directory: unknown$',
    ),
    "unknown holder": (
        {"network_mode": "container:nope"},
        NotFound,
        404,
        r"No such container: nope$",
    ),
}
"""Settings that `create` accepts and `start` refuses."""


@pytest.fixture(scope="module")
def own() -> Iterator[OwnEngine]:
    with OwnEngine() as engine:
        make_small_image(engine.url)
        yield engine


@pytest.fixture
def client(own: OwnEngine) -> Iterator[docker.DockerClient]:
    with connected(own.url) as client:
        yield client
        for container in client.containers.list(all=True):
            container.remove(force=True)


def create(client: docker.DockerClient, **settings: Any) -> Container:
    wanted = {"image": IMAGE, "command": ["sleep", "600"], "network_mode": "none", **settings}
    return client.containers.create(**wanted)


@pytest.mark.parametrize(("settings", "kind", "code", "text"), CREATE.values(), ids=CREATE)
def test_create_refuses(
    client: docker.DockerClient,
    settings: dict[str, Any],
    kind: type[APIError],
    code: int,
    text: str,
) -> None:
    """A refused create leaves no container."""
    with pytest.raises(kind) as refused:
        create(client, **settings)

    assert refused.value.status_code == code
    assert re.search(text, refused.value.explanation)
    assert client.containers.list(all=True) == []


@pytest.mark.parametrize(("settings", "kind", "code", "text"), START.values(), ids=START)
def test_start_refuses(
    client: docker.DockerClient,
    settings: dict[str, Any],
    kind: type[APIError],
    code: int,
    text: str,
) -> None:
    """After a refused start the container remains, with the reason, and must be removed."""
    container = create(client, **settings)

    with pytest.raises(kind) as refused:
        container.start()

    container.reload()
    assert refused.value.status_code == code
    assert re.search(text, refused.value.explanation)
    assert container.status == "created"
    assert re.search(text, container.attrs["State"]["Error"])


def test_a_name_in_use(client: docker.DockerClient) -> None:
    """A name in use, whatever its container's state, is a 409 with that container's id."""
    taken = create(client, name="twice")

    with pytest.raises(APIError) as refused:
        create(client, name="twice")

    assert refused.value.status_code == 409
    assert refused.value.explanation.startswith(
        f'Conflict. The container name "/twice" is already in use by container "{taken.id}"'
    )


@pytest.mark.parametrize("was_started", [False, True])
def test_a_network_of_a_container_that_does_not_run(
    client: docker.DockerClient, was_started: bool
) -> None:
    """A container cannot join the network of a holder that does not run."""
    holder = create(client, name="holder")
    if was_started:
        holder.start()
        holder.kill()
        holder.wait()
    joining = create(client, network_mode="container:holder")

    with pytest.raises(APIError) as refused:
        joining.start()

    assert refused.value.status_code == 409
    expected = f"cannot join network of a non running container: {holder.id}"
    assert refused.value.explanation == expected


def test_repeated_actions(client: docker.DockerClient) -> None:
    """Repeated start and stop succeed; repeated kill, pause and unpause are refused."""
    container = create(client)
    container.start()
    container.start()
    codes = [refusal(container.unpause).status_code]
    container.pause()
    codes.append(refusal(container.pause).status_code)
    container.kill()
    container.wait()
    container.stop()
    codes.append(refusal(container.kill).status_code)

    assert codes == [500, 409, 409]


def test_a_removed_container(client: docker.DockerClient) -> None:
    """Every call for a removed container raises NotFound."""
    container = create(client)
    container.remove()

    for call in (container.start, container.kill, container.reload, container.remove):
        assert isinstance(refusal(call), NotFound)


def refusal(call: Callable[[], object]) -> APIError:
    with pytest.raises(APIError) as refused:
        call()
    return refused.value
