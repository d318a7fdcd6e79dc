"""Fixtures of the drivers' contract: scenes with the fake, process and Docker driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pool_manager.settings import PoolSettings
from tests.support.replicas import pool_settings
from tests.support.scenes import Engine, Scenes, bundle_folder
from tests.support.web_servers import Web, make_web_image, write_bundle

DOCKER = pytest.param("docker", marks=pytest.mark.docker)


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(log_bytes=64 * 1024) as made:
        yield made


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_folder(tmp_path_factory.mktemp("bundle"))


async def _scenes(
    kind: str, request: pytest.FixtureRequest, settings: PoolSettings, bundle: Path
) -> AsyncIterator[Scenes]:
    engine = Engine()
    if kind == "docker":
        names = "engine", "runtime_image"
        engine = Engine(*(request.getfixturevalue(name) for name in names))
    made = Scenes(kind, settings, bundle, engine)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(params=["fake", "process", DOCKER])
async def scenes(
    request: pytest.FixtureRequest, settings: PoolSettings, bundle: Path
) -> AsyncIterator[Scenes]:
    """Scenes of each driver in turn."""
    async for made in _scenes(request.param, request, settings, bundle):
        yield made


@pytest.fixture(params=["process", DOCKER])
async def real(
    request: pytest.FixtureRequest, settings: PoolSettings, bundle: Path
) -> AsyncIterator[Scenes]:
    """Scenes of each driver that runs real replicas, in turn."""
    async for made in _scenes(request.param, request, settings, bundle):
        yield made


@pytest.fixture(scope="session")
def web_image(engine: str, runtime_image: str) -> str:
    """Id of the image of a small HTTP server."""
    return make_web_image(engine, runtime_image)


@pytest.fixture(params=["process", DOCKER])
async def web(
    request: pytest.FixtureRequest, settings: PoolSettings, tmp_path: Path
) -> AsyncIterator[Web]:
    """The HTTP server over each driver in turn."""
    image = request.getfixturevalue("web_image") if request.param == "docker" else ""
    async for made in _scenes(request.param, request, settings, write_bundle(tmp_path)):
        one = Web(made, image)
        yield one
        one.close()
