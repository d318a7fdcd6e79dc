"""Tests of giving GPUs to containers, one to each replica, in the ways that an engine supports.

The GPUs are those of a stand-in for NVIDIA's library. A stand-in for NVIDIA's hook puts them into
containers: it only sets the variable with the GPU's id. Everything between is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import docker
import pytest

from admin.cli.doctor.gpu_libraries import ask_container
from admin.settings import Settings
from tests.support.engine import connected
from tests.support.nvml.board import Board, Gpu
from tests.support.nvml.fixtures import board
from tests.support.own_engine import OwnEngine, nvidia_stand_ins
from tests.support.server import ServingServer, serving
from tests.support.web_servers import web_image_tag

__all__ = ["board"]

pytestmark = [pytest.mark.docker, pytest.mark.slow]

UUIDS = [f"GPU-{letter * 8}" for letter in "abcd"]
HOOK = "nvidia-container-runtime-hook"
HANDLER = b"""
import os

def predict(inputs, ctx):
    return {"device": ctx.device, "visible": os.environ["NVIDIA_VISIBLE_DEVICES"]}
"""
MANIFEST = """schema = 1
name = "NAME"
[runtime]
engine = "python"
[device]
kind = "cuda"
[input.x]
kind = "json"
"""


class Contained(Settings):
    """A server over containers."""

    driver: Literal["process", "docker"] = "docker"


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvidia")


@pytest.fixture(scope="module")
def gpu_engine(stand_ins: Path, runtime_image: str) -> Iterator[OwnEngine]:
    """An engine with the stand-ins and the runtime image."""
    with OwnEngine(*nvidia_stand_ins(stand_ins), path=stand_ins) as engine:
        engine.load(runtime_image)
        yield engine


@pytest.fixture(scope="module", params=["request", "runtime"])
def way(request: pytest.FixtureRequest, gpu_engine: OwnEngine, stand_ins: Path) -> Iterator[str]:
    """Way to request GPUs: both with the hook, only the runtime's without it."""
    hook = stand_ins / HOOK
    if request.param == "runtime":
        gpu_engine.stop()
        hidden = hook.rename(stand_ins / "hidden")
        gpu_engine.start()
    yield request.param
    if request.param == "runtime":
        gpu_engine.stop()
        hidden.rename(hook)
        gpu_engine.start()


def asked(client: docker.DockerClient, name: str) -> tuple[str, list[list[str]]]:
    """Return runtime and device requests of the function's container."""
    (found,) = client.containers.list(filters={"name": f"fngate-{name}-"})
    host = found.attrs["HostConfig"]
    return host["Runtime"], [one["DeviceIDs"] for one in host["DeviceRequests"] or ()]


async def deploy(server: ServingServer, name: str) -> None:
    manifest = MANIFEST.replace("NAME", name)
    await server.deploy({"handler.py": HANDLER}, name=name, manifest=manifest)


async def test_each_container_sees_its_one_gpu(
    gpu_engine: OwnEngine, runtime_image: str, way: str, board: Board, tmp_path: Path
) -> None:
    """Of four functions on four GPUs, each replica sees exactly its own GPU, in every way to
    request it."""
    board.add(*(Gpu(uuid, 24_000) for uuid in UUIDS))
    images = {"image_cpu": runtime_image, "image_gpu": runtime_image}
    engine = {"docker_host": gpu_engine.url, "standbys": 0, "cpu_slots": 1, **images}
    async with serving(tmp_path, kind=Contained, **engine) as server:
        names = ["f", "g", "h", "i"]
        for name in names:
            await deploy(server, name)
        body = {"inputs": {"x": 1}}
        answers = await asyncio.gather(*(server.call(name, body) for name in names))
        placed = {one.pool.partition("/")[2][0]: one.first_device for one in server.bound()}
        with connected(gpu_engine.url) as client:
            how = {name: asked(client, name) for name in names}

    outputs = {name: one.json()["outputs"] for name, one in zip(names, answers, strict=True)}
    assert {name: one["visible"] for name, one in outputs.items()} == placed
    assert sorted(placed.values()) == UUIDS
    assert {one["device"] for one in outputs.values()} == {"cuda"}
    for name in names:
        runtime, devices = how[name]
        if way == "request":
            assert devices == [[placed[name]]]
        else:
            assert (runtime, devices) == ("nvidia", [])


SEVERAL = """schema = 1
name = "h"
[runtime]
engine = "python"
[device]
count = 2
[input.x]
kind = "json"
"""
SERVER = """schema = 1
[server]
image = "{image}"
command = ["8000", "${{GPUS}}"]
port = 8000
[device]
count = 2
"""


async def test_each_container_sees_both_of_its_gpus(
    gpu_engine: OwnEngine, runtime_image: str, way: str, board: Board, tmp_path: Path
) -> None:
    """A handler and an image on two GPUs each: one request has both, in every way, in the order of
    their PCI addresses. Without a network they are told to meet on the loopback interface."""
    board.add(*(Gpu(uuid, 24_000) for uuid in UUIDS))
    buses = dict(zip(UUIDS, (0xC1, 0x18, 0x81, 0x41), strict=True))
    for uuid, bus in buses.items():
        board.sense(uuid, pci_bus=bus)
    image = web_image_tag(gpu_engine.url, runtime_image)
    images = {"image_cpu": runtime_image, "image_gpu": runtime_image}
    engine = {"docker_host": gpu_engine.url, "standbys": 0, "cpu_slots": 1, **images}
    async with serving(tmp_path, kind=Contained, **engine) as server:
        await server.deploy({"handler.py": HANDLER}, name="h", manifest=SEVERAL)
        await server.deploy({"app.txt": b""}, name="s", manifest=SERVER.format(image=image))
        handler = (await server.call("h", {"inputs": {"x": 1}})).json()["outputs"]
        program = (await server.get("/fn/s/facts")).json()
        placed = {one.pool.partition("/")[2][0]: list(one.devices) for one in server.bound()}
        with connected(gpu_engine.url) as client:
            how = {name: asked(client, name) for name in ("h", "s")}

    assert sorted(placed["h"] + placed["s"]) == UUIDS
    assert all(devices == sorted(devices, key=buses.__getitem__) for devices in placed.values())
    variables = program["environment"]
    assert handler["visible"].split(",") == placed["h"]
    assert variables["NVIDIA_VISIBLE_DEVICES"].split(",") == placed["s"]
    assert (variables["CUDA_DEVICE_ORDER"], variables["NCCL_SOCKET_IFNAME"]) == ("PCI_BUS_ID", "lo")
    assert program["sizes"]["/dev/shm"] == 1024
    for name, (runtime, devices) in how.items():
        if way == "request":
            assert devices == [placed[name]]
        else:
            assert (runtime, devices) == ("nvidia", [])


def test_doctor_asks_a_replicas_code(
    gpu_engine: OwnEngine, runtime_image: str, way: str, board: Board
) -> None:
    """The probe of `fnctl doctor` runs in a container that gets the GPUs in every way to request
    them. The image is one for CPUs, so what is missing is the provider."""
    answer = ask_container(gpu_engine.url, runtime_image)

    assert answer.ended == ""
    assert set(answer.parts) == {"packages", "driver", "cuda", "tensorrt"}
    assert answer.parts["cuda"]["error"].endswith("has no CUDAExecutionProvider")


async def test_an_engine_that_cannot_give_gpus_says_so(
    engine: str, runtime_image: str, board: Board, tmp_path: Path
) -> None:
    """Without NVIDIA's parts a deploy fails with the reason and the command to install them."""
    board.add(Gpu(UUIDS[0], 24_000))
    images = {"image_cpu": runtime_image, "image_gpu": runtime_image}
    settings = {"docker_host": engine, "standbys": 0, "cpu_slots": 1, **images}
    async with serving(tmp_path, kind=Contained, **settings) as server:
        with pytest.raises(AssertionError, match=r"could not select device driver.*nvidia-ctk"):
            await deploy(server, "f")
        await server.until_pools(lambda: not server.bound())

    with connected(engine) as client:
        assert client.containers.list(all=True, filters={"name": "fngate-f-"}) == []
