"""Tests of the choice of the driver."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from admin.compose import DRIVERS
from admin.settings import Settings
from pool_manager.core.state import Device
from pool_manager.drivers.process import ProcessDriver
from registry.errors import DriverError, EngineDown

CPU = Device("cpu:0", "cpu")
GPU = Device("GPU-1", "cuda")


def test_a_driver_by_its_name() -> None:
    """Every driver that the settings may name can be opened."""
    assert set(DRIVERS) == set(get_args(Settings.model_fields["driver"].annotation))


async def test_processes(tmp_path: Path) -> None:
    """The driver of processes is created, for code that runs with the server's rights."""
    driver = await DRIVERS["process"](Settings(data=tmp_path), [CPU], ",".join)

    assert type(driver) is ProcessDriver
    assert (driver.kind, driver.is_contained) == ("process", False)
    await driver.close()


async def test_no_engine(tmp_path: Path) -> None:
    """A missing engine socket is reported with its path and advice."""
    url = f"unix://{tmp_path}/none.sock"

    with pytest.raises(EngineDown, match=r"none\.sock.*No such file.*FN_DOCKER_HOST"):
        await DRIVERS["docker"](
            Settings(driver="docker", docker_host=url, data=tmp_path), [CPU], ",".join
        )


@pytest.mark.docker
async def test_an_engine_with_other_users(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with remapped users is refused: no replica could start on it."""
    options = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=userns"]}
    monkeypatch.setattr("docker.APIClient.info", lambda _client: options)

    with pytest.raises(DriverError, match="maps user ids of containers to other ids"):
        await DRIVERS["docker"](
            Settings(driver="docker", docker_host=engine, data=tmp_path), [CPU], ",".join
        )


@pytest.mark.docker
async def test_no_image(engine: str, tmp_path: Path) -> None:
    """Only images for the present devices are required."""
    names = {"image_cpu": "fngate-none:cpu", "image_gpu": "fngate-none:gpu"}
    settings = Settings(driver="docker", docker_host=engine, data=tmp_path, **names)

    with pytest.raises(DriverError, match=r"No such image: fngate-none:cpu.*fnctl image build"):
        await DRIVERS["docker"](settings, [CPU], ",".join)


@pytest.mark.docker
async def test_no_image_for_a_gpu(engine: str, runtime_image: str, tmp_path: Path) -> None:
    """With a GPU its image is required too."""
    names = {"image_cpu": runtime_image, "image_gpu": "fngate-none:gpu"}
    settings = Settings(driver="docker", docker_host=engine, data=tmp_path, **names)

    with pytest.raises(DriverError, match=r"No such image: fngate-none:gpu"):
        await DRIVERS["docker"](settings, [CPU, GPU], ",".join)


@pytest.mark.docker
async def test_an_engine_with_the_image(engine: str, runtime_image: str, tmp_path: Path) -> None:
    """With engine and image present the driver is created."""
    settings = Settings(driver="docker", docker_host=engine, image_cpu=runtime_image, data=tmp_path)

    driver = await DRIVERS["docker"](settings, [CPU], ",".join)

    assert (driver.kind, driver.is_contained) == ("docker", True)
    assert await driver.list() == set()
    await driver.close()
