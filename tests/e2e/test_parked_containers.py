"""Deploys of an image with a table [park]: the engine is apart from its sidecar.

The GPU is the stand-in's, put into containers by a stand-in for NVIDIA's hook; the memory that a
sleep takes of the host, and the kernel's cap on it, are real.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from admin.settings import Settings
from tests.support import sleepy_engine
from tests.support.chat_server import SOURCE as CHAT
from tests.support.engine import connected, make_image
from tests.support.nvml.board import Board, Gpu
from tests.support.nvml.fixtures import board
from tests.support.own_engine import OwnEngine, nvidia_stand_ins
from tests.support.server import ServingServer, serving
from tests.support.sleepy_engine.memory import RESIDUE_MIB

__all__ = ["board"]

pytestmark = [pytest.mark.docker, pytest.mark.slow]

RECIPE = """
FROM {runtime}
USER root
COPY engine.py memory.py /app/sleepy_engine/
COPY answers.py /app/chat/
USER 4711:4711
ENTRYPOINT ["python3", "-B", "-E", "-S", "/app/sleepy_engine/engine.py"]
"""
MANIFEST = """schema = 1
name = "llm"

[server]
image = "{image}"
command = ["8000", "--enable-sleep-mode", "--held", "/held", "--slow", "2", "--host-mib", "{mib}"]
port = 8000
ready = "/health"
stop_grace_s = 1

[server.env]
CUDA_VISIBLE_DEVICES = "0"

[server.mounts]
held = "{held}:/held:rw"

[openai]

[park]
engine = "vllm"

[device]
kind = "cuda"
memory_mib = {cap}
"""


class Contained(Settings):
    """A server over containers."""

    driver: Literal["process", "docker"] = "docker"


@pytest.fixture(scope="module")
def gpu_engine(tmp_path_factory: pytest.TempPathFactory, runtime_image: str) -> Iterator[OwnEngine]:
    """An engine with the stand-ins and the runtime image."""
    folder = tmp_path_factory.mktemp("nvidia")
    with OwnEngine(*nvidia_stand_ins(folder), path=folder) as engine:
        engine.load(runtime_image)
        yield engine


async def deploy(server: ServingServer, text: str) -> dict[str, Any]:
    """Deploy; return what its trial's park has shown."""
    result = await server.deploy({"readme.txt": b"-"}, name="llm", manifest=text)
    park: dict[str, Any] = result["profile"]["park"]
    return park


async def test_the_park_of_a_container_is_tried(
    gpu_engine: OwnEngine, runtime_image: str, board: Board, tmp_path: Path
) -> None:
    """Its memory is measured by the engine, and its replicas have that beside their cap. A sleep
    over the trial's cap, at which the kernel kills it, leaves a revision without parks."""
    held = board.holders = tmp_path / "held"
    held.mkdir(mode=0o777)
    held.chmod(0o777)
    board.add(Gpu("GPU-stand-in-0", 24_000))
    folder = sleepy_engine.SOURCE.parent
    names = {"engine.py": folder, "memory.py": folder, "answers.py": CHAT}
    files = {name: (there / name).read_bytes() for name, there in names.items()}
    recipe = RECIPE.format(runtime=runtime_image)
    image = make_image(gpu_engine.url, "fngate-sleepy", recipe, files)
    images = {"image_cpu": runtime_image, "image_gpu": runtime_image}
    settings = {"docker_host": gpu_engine.url, "standbys": 0, "cpu_slots": 1, **images}
    async with serving(tmp_path, kind=Contained, mount_roots=(str(held),), **settings) as server:
        parts = {"image": image, "held": held}
        killed = await deploy(server, MANIFEST.format(**parts, mib=900, cap=300))
        works = await deploy(server, MANIFEST.format(**parts, mib=300, cap=600))
        assert (await server.get("/fn/llm/other")).status == 404
        with connected(gpu_engine.url) as client:
            (container,) = client.containers.list(filters={"name": "fngate-llm-"})
            cap = container.attrs["HostConfig"]["Memory"]

    assert not killed["works"]
    assert killed["reason"].startswith("it ended as it slept: ")
    assert killed["reason"].endswith("[device] memory_mib in function.toml is that cap")
    assert (works["works"], works["reason"]) == (True, "")
    assert 290 <= works["host_mib"] <= 400
    assert works["residue_mib"] == RESIDUE_MIB
    assert cap == (600 + math.ceil(works["host_mib"])) * 2**20
