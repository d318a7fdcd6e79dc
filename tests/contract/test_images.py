"""Tests of images on a real engine and a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import docker
import pytest

from pool_manager.drivers.docker.engine import Engine, Times
from pool_manager.drivers.docker.images import DockerImages
from pool_manager.image_names import PINNED, PULLED
from pool_manager.images import FoundImage, PullProgress
from registry.errors import DriverError
from tests.support.engine import connected
from tests.support.registry import PASSWORD, USER, Registry, registry

pytestmark = [pytest.mark.docker, pytest.mark.slow]
OWNER = "0123456789abcdef"
CHANGES = ["EXPOSE 8000/tcp", "EXPOSE 9000/udp", "VOLUME /var/lib/data", "USER 33:33"]


@pytest.fixture
def image(engine: str) -> Iterator[str]:
    """Id of an image of random bytes, which is gone from the engine after the test."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(4):
            content = os.urandom(1024 * 1024)
            entry = tarfile.TarInfo(f"file{number}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    with connected(engine) as client:
        made = client.api.import_image_from_data(packed.getvalue(), changes=CHANGES)
        id = str(json.loads(made)["status"])
        yield id
    forget(engine, id)


@pytest.fixture
async def images(engine: str) -> AsyncIterator[DockerImages]:
    opened = await asyncio.to_thread(Engine, engine, 2, Times())
    yield DockerImages(opened, engine, OWNER)
    await asyncio.to_thread(opened.close)


@pytest.fixture
def pushed(engine: str, image: str, tmp_path: Path) -> Iterator[tuple[Registry, str]]:
    """An open registry with the image, which the engine does not have any more."""
    with registry(engine, tmp_path) as made:
        reference = made.push(image, "team/app:1")
        forget(engine, image)
        yield made, reference


def forget(engine: str, image: str) -> None:
    with connected(engine) as client, contextlib.suppress(docker.errors.ImageNotFound):
        client.api.remove_image(image, force=True)


async def pulled(images: DockerImages, reference: str) -> tuple[FoundImage, list[PullProgress]]:
    async with aclosing(images.pull(reference)) as pull:
        progress = [one async for one in pull]
    found = await images.find(reference)
    assert found is not None
    return found, progress


def names(engine: str, id: str) -> set[str]:
    with connected(engine) as client:
        return set(client.api.inspect_image(id)["RepoTags"])


async def test_an_image_is_pulled_and_pinned(
    engine: str, images: DockerImages, image: str, pushed: tuple[Registry, str]
) -> None:
    """A pull shows its progress; the image has its digest, ports and volumes. Its pin is this
    server's own and goes without the image's other names."""
    _, reference = pushed
    assert await images.find(reference) is None

    found, progress = await pulled(images, reference)

    assert found.id == image
    assert found.digest.startswith(f"{reference.removesuffix(':1')}@sha256:")
    assert (found.ports, found.volumes) == ((8000,), ("/var/lib/data",))
    assert progress[-1].done_bytes == progress[-1].total_bytes > 4_000_000
    assert found == await images.find(reference)
    assert (await images.find(found.id)) == found

    await images.pin(found.id, is_pulled=True)
    tag = f"{found.id.removeprefix('sha256:')}.{OWNER}"
    assert names(engine, found.id) == {reference, f"{PINNED}:{tag}", f"{PULLED}:{tag}"}
    await images.unpin_others([found.id])
    assert f"{PINNED}:{tag}" in names(engine, found.id)
    assert await images.pinned() == {found.id}
    await images.unpin_others([])
    assert await images.pinned() == frozenset()
    assert names(engine, found.id) == {reference, f"{PULLED}:{tag}"}
    await images.unpin_others([found.id, f"sha256:{64 * '0'}"])
    assert f"{PINNED}:{tag}" in names(engine, found.id)


async def test_another_servers_pins_stay(
    engine: str, images: DockerImages, image: str, pushed: tuple[Registry, str]
) -> None:
    """Two servers of one engine pin the same image; each removes its own tag only. A prune of one
    leaves the other's image all its names, and so that of a container."""
    _, reference = pushed
    other = DockerImages(images._engine, engine, "f" * 16)
    found, _ = await pulled(images, reference)
    await images.pin(found.id, is_pulled=True)
    await other.pin(found.id)
    with connected(engine) as client:
        assert await images.prune([]) == []
        assert reference in names(engine, image)
        await other.unpin_others([])
        made = client.api.create_container(found.id, ["none"])
        assert await images.prune([]) == []
        assert reference in names(engine, image)
        client.api.remove_container(made["Id"])

    await images.pin(found.id)
    await other.pin(found.id)
    await images.unpin_others([])
    assert {name.partition(".")[2] for name in names(engine, image) if PINNED in name} == {"f" * 16}
    await other.unpin_others([])


async def test_a_pin_holds_an_image_whose_digest_was_removed(
    engine: str, images: DockerImages, image: str, pushed: tuple[Registry, str]
) -> None:
    """A pull by digest brings the same image back, and the pin outlives the registry's name."""
    _, reference = pushed
    found, _ = await pulled(images, reference)
    forget(engine, image)

    again, _ = await pulled(images, found.digest)
    assert again == found
    await images.pin(found.id)
    with connected(engine) as client:
        client.api.remove_image(found.digest)

    kept = await images.find(found.id)
    assert kept is not None
    assert kept.digest == ""


async def test_prune_removes_what_was_pulled_and_nobody_needs(
    engine: str, images: DockerImages, image: str, pushed: tuple[Registry, str]
) -> None:
    """An image in use, one with a name of the operator's own, and one that was not pulled stay."""
    _, reference = pushed
    found, _ = await pulled(images, reference)
    await images.pin(found.id, is_pulled=True)

    assert await images.prune([found.id]) == []
    with connected(engine) as client:
        client.api.tag(found.id, "kept-by-hand", "1")
    assert await images.prune([]) == []
    assert names(engine, found.id) == {"kept-by-hand:1"}
    with connected(engine) as client:
        client.api.remove_image("kept-by-hand:1")

    found, _ = await pulled(images, reference)
    await images.pin(found.id, is_pulled=True)
    (removed,) = await images.prune([])
    assert (removed.id, removed.names) == (found.id, (reference,))
    assert removed.size_bytes > 4_000_000
    assert await images.find(found.id) is None


async def test_a_password_comes_from_the_docker_config(
    engine: str,
    images: DockerImages,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without credentials the pull is refused with the command to log in; a docker config and a
    credential helper are used."""
    config = tmp_path / "docker"
    config.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    with registry(engine, tmp_path, password=PASSWORD) as made:
        reference = made.push(image, "team/app:1")
        forget(engine, image)
        with pytest.raises(DriverError) as refused:
            await pulled(images, reference)
        assert f"docker login {made.address}" in refused.value.message

        made.log_in(config)
        found, _ = await pulled(images, reference)
        assert found.id == image
        forget(engine, image)

        helper = tmp_path / "docker-credential-tests"
        answer = f'{{"Username": "{USER}", "Secret": "{PASSWORD}"}}'
        helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
        helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        (config / "config.json").write_text(f'{{"credHelpers": {{"{made.address}": "tests"}}}}')
        found, _ = await pulled(images, reference)
        assert found.id == image
