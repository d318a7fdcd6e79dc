"""Tests of a test's own engine: it is real, survives restarts, and leaves nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.engine import base_image, connected, make_small_image
from tests.support.leaks import Leaks
from tests.support.own_engine import OwnEngine, lives, nvidia_stand_ins, processes

pytestmark = [pytest.mark.docker, pytest.mark.slow]

SLEEP = ["sleep", "600"]
IMAGE = "fngate-small:latest"
ABANDON = """
import os, sys
from tests.support.own_engine import OwnEngine
engine = OwnEngine().__enter__()
print(engine.root, flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def own() -> Iterator[OwnEngine]:
    """Engine with the small image; tests may restart its process."""
    with OwnEngine() as engine:
        make_small_image(engine.url)
        yield engine


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    folder = tmp_path_factory.mktemp("nvidia")
    with OwnEngine(*nvidia_stand_ins(folder), path=folder) as engine:
        make_small_image(engine.url)
        yield engine


def remains(root: Path) -> list[str]:
    """Return processes, files, mounts and cgroups of the engine at `root`."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [
        *map(str, processes(root)),
        *([str(root)] if root.exists() else []),
        *(line for line in mounts if str(root) in line),
        *map(str, Path("/sys/fs/cgroup").glob(f"**/{root.name}")),
    ]


def run(engine: OwnEngine, *, paused: bool = False) -> tuple[str, int]:
    """Start a sleeping container; return its id, and its pid on this machine."""
    with connected(engine.url) as client:
        container = client.containers.run(
            # The first process of a container ignores SIGTERM, the default stop signal.
            IMAGE,
            SLEEP,
            network_mode="none",
            stop_signal="SIGKILL",
            detach=True,
        )
        container.reload()
        if paused:
            container.pause()
        return container.id, container.attrs["State"]["Pid"]


def status(engine: OwnEngine, id: str) -> str:
    with connected(engine.url) as client:
        return str(client.containers.get(id).status)


def answers(engine: OwnEngine) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(engine.url.removeprefix("unix://")) == 0


@pytest.mark.parametrize("is_paused", [False, True])
def test_containers_survive_a_killed_engine(own: OwnEngine, leaks: Leaks, is_paused: bool) -> None:
    """With live-restore, containers keep running or stay paused, and the next dockerd knows
    them."""
    leaks.exclude("dockerd", reason="the module's engine is another process afterwards")
    id, pid = run(own, paused=is_paused)

    own.kill()
    lived_on = lives(pid)
    is_down = not answers(own)
    own.start()

    assert is_down
    assert lived_on
    assert status(own, id) == ("paused" if is_paused else "running")


def test_containers_survive_a_stopped_engine(own: OwnEngine, leaks: Leaks) -> None:
    """Containers survive a restart of Docker by the machine's owner."""
    leaks.exclude("dockerd", reason="the module's engine is another process afterwards")
    id, _ = run(own)

    own.stop()
    own.start()

    assert status(own, id) == "running"


def test_without_live_restore_containers_end(leaks: Leaks) -> None:
    """Without live-restore a restart of the engine ends its containers."""
    with OwnEngine(live_restore=False) as engine:
        make_small_image(engine.url)
        id, pid = run(engine)

        engine.kill()
        lived_on = lives(pid)
        engine.start()

        assert lived_on
        assert status(engine, id) == "exited"


@pytest.mark.parametrize("is_killed", [False, True])
def test_nothing_is_left(is_killed: bool) -> None:
    """No container, running or paused, and no other remains outlive the engine, even if it was
    killed."""
    with OwnEngine() as engine:
        make_small_image(engine.url)
        _, running = run(engine)
        _, frozen = run(engine, paused=True)
        before = remains(engine.root)
        if is_killed:
            engine.kill()

    assert before
    assert remains(engine.root) == []
    assert not lives(running)
    assert not lives(frozen)


def test_the_next_engine_removes_the_remains_of_a_killed_run() -> None:
    """A killed test run cannot clean up after itself."""
    said = subprocess.run([sys.executable, "-c", ABANDON], stdout=subprocess.PIPE, check=True)
    abandoned = Path(said.stdout.decode().strip())
    before = remains(abandoned)

    with OwnEngine():
        pass

    assert before
    assert remains(abandoned) == []


def test_an_image_is_copied(engine: str) -> None:
    """The image has the same id and tag on both engines."""
    with OwnEngine() as own:
        own.load(base_image())

        with connected(engine) as shared, connected(own.url) as copy:
            assert copy.images.get(base_image()).id == shared.images.get(base_image()).id


def test_two_engines_are_separate(own: OwnEngine) -> None:
    """Each engine has its own identity, and neither sees the other's images."""
    with OwnEngine() as other, connected(own.url) as mine, connected(other.url) as others:
        assert mine.info()["ID"] != others.info()["ID"]
        assert others.images.list() == []


def test_a_wrong_option_is_reported() -> None:
    """The error contains the log of a dockerd that does not start, and nothing remains."""
    with pytest.raises(AssertionError, match="unknown flag: --no-such-option"):
        OwnEngine("--no-such-option").__enter__()


@pytest.mark.parametrize(
    "ask",
    [
        {"runtime": "nvidia", "environment": {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}},
        {
            "device_requests": [
                docker.types.DeviceRequest(
                    driver="nvidia", device_ids=["GPU-a"], capabilities=[["gpu"]]
                )
            ]
        },
    ],
    ids=["runtime", "device_requests"],
)
def test_both_ways_to_request_a_gpu_start(nvidia: OwnEngine, ask: dict[str, object]) -> None:
    """The container sees exactly the requested device."""
    with connected(nvidia.url) as client:
        said = client.containers.run(IMAGE, ["env"], network_mode="none", remove=True, **ask)

    visible = [line for line in said.decode().splitlines() if "NVIDIA" in line]
    assert visible == ["NVIDIA_VISIBLE_DEVICES=GPU-a"]
