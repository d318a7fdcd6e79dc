"""What a build starts and what it leaves, on a real engine."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Iterator

import pytest
from docker import APIClient
from docker.errors import NotFound

from admin.image import containers
from tests.support import runtime_images

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def build_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def image(docker_client: APIClient, build_id: str) -> Iterator[str]:
    """A nameless image with the label of `build_id`."""
    base = runtime_images.given("FN_TEST_BASE")
    text = f"FROM {base}\nLABEL fngate.build={build_id}\n"
    messages = docker_client.build(fileobj=io.BytesIO(text.encode()), rm=True, decode=True)
    [made] = [message["aux"]["ID"] for message in messages if "aux" in message]
    yield made
    runtime_images.remove(docker_client, made)


def there(client: APIClient, build_id: str) -> int:
    """How many images and containers have the label."""
    filters = {"label": f"fngate.build={build_id}"}
    return len(client.images(filters=filters)) + len(client.containers(all=True, filters=filters))


def test_python_runs_as_a_replica_does(docker_client: APIClient, image: str) -> None:
    """As its own user, without rights, network and a root that can be written; its output and
    exit code come back, and the container is gone."""
    code = (
        "import os, sys\n"
        "print(os.getuid(), sys.flags.isolated, os.listdir('/sys/class/net'))\n"
        "open('/tmp/x', 'w')\n"
        "try: open('/x', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
        "sys.exit(3)"
    )

    before = len(docker_client.containers(all=True, filters={"ancestor": image}))
    ended = containers.run_python(docker_client, image, code, "b")

    assert ended == (3, "10001 1 ['lo']\nRead-only file system\n")
    assert len(docker_client.containers(all=True, filters={"ancestor": image})) == before == 0


@pytest.fixture
def running(docker_client: APIClient, image: str) -> Iterator[str]:
    """A container of the image, which has the image's labels."""
    code = "import signal; signal.pause()"
    made = docker_client.create_container(image, ["python3", "-c", code])
    docker_client.start(made["Id"])
    yield made["Id"]
    with contextlib.suppress(NotFound):
        docker_client.remove_container(made["Id"], force=True)


def test_only_what_is_of_the_build_is_swept(
    docker_client: APIClient, running: str, build_id: str
) -> None:
    """Of one that was broken off, containers and nameless images go; another build's stay."""
    containers.sweep(docker_client, "another", is_broken_off=True, pause=lambda _: None)
    others = there(docker_client, build_id)
    containers.sweep(docker_client, build_id, is_broken_off=True, pause=lambda _: None)

    assert (others, there(docker_client, build_id)) == (2, 0)


def test_replicas_of_a_finished_build_run_on(docker_client: APIClient, running: str) -> None:
    """They have its label from their image, and began as soon as that had its name."""
    labels = docker_client.inspect_container(running)["Config"]["Labels"]

    containers.sweep(docker_client, labels["fngate.build"], is_broken_off=False)

    assert docker_client.inspect_container(running)["State"]["Running"]


def test_after_a_broken_build_is_looked_longer(docker_client: APIClient) -> None:
    """As many looks as it takes for what the engine still ends, with pauses between them."""
    pauses: list[float] = []

    containers.sweep(docker_client, "nothing", is_broken_off=True, pause=pauses.append)

    assert pauses == [containers.SWEEP_S] * (containers.QUIET_SWEEPS - 1)


def test_what_is_used_or_named_stays(docker_client: APIClient, image: str, build_id: str) -> None:
    """An image goes only when no container and no tag needs it."""
    docker_client.tag(image, "fngate-test", build_id)
    named = containers.remove_unused(docker_client, image)
    made = docker_client.create_container(image, ["true"])
    docker_client.tag(runtime_images.given("FN_TEST_BASE"), "fngate-test", build_id, force=True)
    docker_client.remove_image(f"fngate-test:{build_id}")
    used = containers.remove_unused(docker_client, image)
    docker_client.remove_container(made["Id"])

    assert (named, used) == (False, False)
    assert containers.remove_unused(docker_client, image)
