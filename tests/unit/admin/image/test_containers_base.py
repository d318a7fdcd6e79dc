"""The base image is asked what it can run, on a real engine."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator

import pytest
from docker import APIClient

from admin.image import containers
from admin.image.context import ImageError
from tests.support import runtime_images

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def derived(docker_client: APIClient) -> Iterator[Callable[[str], str]]:
    """Makes an image of the given base whose python3 is the given shell script; its tag."""
    tags: list[str] = []

    def make(run: str) -> str:
        tags.append(f"fngate-test:{uuid.uuid4().hex}")
        text = f"FROM {runtime_images.given('FN_TEST_BASE')}\nRUN {run}\n"
        file = io.BytesIO(text.encode())
        messages = docker_client.build(
            fileobj=file, tag=tags[-1], rm=True, forcerm=True, network_mode="none", decode=True
        )
        assert [message for message in messages if "error" in message] == []
        return tags[-1]

    yield make
    for tag in tags:
        runtime_images.remove(docker_client, tag)


def written(text: str) -> str:
    """The command that makes python3 a script with this text."""
    return (
        f"printf '#!/bin/sh\\n{text}\\n' > /usr/local/bin/python3; chmod 755 /usr/local/bin/python3"
    )


def test_a_base_that_is_there_is_not_pulled(docker_client: APIClient) -> None:
    """Nothing is asked of a registry."""
    told: list[str] = []

    containers.pull_base(docker_client, runtime_images.given("FN_TEST_BASE"), told.append)

    assert told == []


def test_a_base_that_cannot_be_pulled_is_told(docker_client: APIClient) -> None:
    """The message names the image, the note how to get or choose one."""
    told: list[str] = []
    nowhere = "127.0.0.1:1/fngate/none:1"

    with pytest.raises(ImageError, match=f"the base image {nowhere} is not on the engine") as got:
        containers.pull_base(docker_client, nowhere, told.append)

    assert told == [f"pulling {nowhere}"]
    assert f"docker pull {nowhere}" in got.value.__notes__[0]


def test_a_base_says_what_it_runs(docker_client: APIClient) -> None:
    """Python, machine and glibc of the given base, Debian 12."""
    platform = containers.probe_base(docker_client, runtime_images.given("FN_TEST_BASE"), "b")

    assert platform.python >= containers.OLDEST
    assert platform.tags()
    assert platform.glibc >= (2, 17)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (written('echo [3, 9, \\"x86_64\\", 2, 36]'), "has Python 3.9, expected 3.11 or newer"),
        (written("echo oh; exit 4"), "ended with code 4:\n    oh"),
        ("rm -f /usr/bin/python3 /usr/local/bin/python3", "has no python3"),
    ],
)
def test_a_base_that_will_not_do_is_told(
    docker_client: APIClient, derived: Callable[[str], str], run: str, reason: str
) -> None:
    """Too old, broken or without a Python: said before anything is downloaded."""
    with pytest.raises(ImageError) as caught:
        containers.probe_base(docker_client, derived(run), "b")

    assert reason in caught.value.message
    assert "--base" in caught.value.__notes__[0]
