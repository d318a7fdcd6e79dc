"""Tests of images with hostile configurations over a real engine.

A configuration either starts as confined as any other, or the start is refused with a reason; both
leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.drivers.docker.spec import PART, REPLICA, SERVER, SIDECAR, UID
from pool_manager.mounts import MountRules
from pool_manager.settings import PoolSettings
from registry.model.servers import Mount
from tests.support.containers import Containers
from tests.support.doses import amount
from tests.support.hostile_configs import Variants, variants
from tests.support.replicas import pool_settings
from tests.support.scenes import Engine, Scenes
from tests.support.sidecar_process import ask
from tests.support.web_servers import ID, Web, write_bundle

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

PYTHON = ["/usr/bin/python3", "-I", "-u", "/server.py"]
SPELLINGS = ("/x/../data", "//cache", "/var/tmp/.", "/bin/../srv", "/opt/")
VOLUMES = ["/data", "/cache", "/var/tmp", "/srv", "/opt"]
"""Folders of SPELLINGS."""
HOSTILE: dict[str, Any] = {
    "Entrypoint": PYTHON,
    "User": "4711:4712",
    "Volumes": {one: {} for one in (*SPELLINGS, *(f"/v{n}" for n in range(20)))},
    "StopSignal": "99",
    "WorkingDir": "/not/there/../yet",
    "ExposedPorts": {f"{number}/tcp": {} for number in range(1, 10_001)},
    "Healthcheck": {"Test": ["CMD-SHELL", "false"], "Interval": 1_000_000_000, "Retries": 1},
    "OnBuild": ["RUN false"],
    "Env": [
        "LD_PRELOAD=/nowhere.so",
        "PATH=/nowhere",
        "PORT=1",
        "FN_REPLICA=aaaa0009",
        "FN_DATA=/",
        "NVIDIA_VISIBLE_DEVICES=all",
        "DOCKER_HOST=tcp://127.0.0.1:1",
    ],
}


@dataclass(frozen=True)
class Refused:
    """An image that cannot start, and a part of the reason. `container`: what its function says."""

    config: dict[str, Any]
    reason: str
    links: dict[str, str] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)


BY_ENGINE = {
    "no command": Refused({"Entrypoint": None, "Cmd": None}, "No command specified"),
    "a relative folder to work in": Refused({"WorkingDir": "proc/self"}, "absolute path"),
    "a descriptor of the runtime to work in": Refused(
        {"WorkingDir": "/proc/self/fd/8"}, "cannot start a container: the engine says"
    ),
    "a user with a name without end": Refused({"User": "x" * 100_000}, "unable to find user x"),
    "a negative user": Refused({"User": "-1:-1"}, "cannot start a container: the engine says"),
    "a user beyond all": Refused(
        {"User": "4294967295:4294967295"}, "cannot start a container: the engine says"
    ),
    "a user that nobody knows": Refused({"User": "\x1b[31mnobody\x07"}, "unable to"),
    "a mount over the processes": Refused(
        {},
        "cannot start a container: the engine says",
        {"/models": "/proc"},
        {"mounts": (Mount("models", "/usr/share", "/models"),)},
    ),
    "scratch space over the processes": Refused(
        {}, "cannot start a container: the engine says", {"/tmp": "/proc"}
    ),
}
SOME = ("no command", "a mount over the processes")


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(log_bytes=64 * 1024, mounts=MountRules((Path("/usr"),))) as made:
        yield made


@pytest.fixture
def shown(engine: str, settings: PoolSettings) -> Iterator[Containers]:
    """Containers on the engine; none may remain after the test."""
    made = Containers(engine, settings)
    yield made
    left = made.parts()
    made.wipe()
    made.close()
    assert left == {}


@pytest.fixture
def images(engine: str, web_image: str) -> Iterator[Variants]:
    with variants(engine, web_image) as made:
        yield made


@pytest.fixture
async def web(
    shown: Containers,
    engine: str,
    runtime_image: str,
    web_image: str,
    settings: PoolSettings,
    tmp_path: Path,
) -> AsyncIterator[Web]:
    scenes = Scenes("docker", settings, write_bundle(tmp_path), Engine(engine, runtime_image))
    made = Web(scenes, web_image)
    yield made
    made.close()
    await scenes.close()


async def test_a_hostile_configuration_changes_nothing(
    web: Web, shown: Containers, images: Variants
) -> None:
    """Its labels are no labels of ours, its volumes are bounded, its health check does not run, its
    variables reach nobody else, and with a stop signal that is none it is released."""
    labels = {
        "fngate.part": "sidecar",
        "fngate.replica": "aaaa0009",
        "fngate.owner": shown.owner.name,
        "fngate.uid": "0",
        "fngate.holder": "7",
        "fngate.link": "1",
        "fngate.function": "default/other@1",
    }
    image = images.make(**HOSTILE, Labels=labels)
    stage = await web.ready(container={"image": image}, stop_grace_s=1.0)
    one = await web.gateway(stage)
    seen = await asyncio.to_thread(lambda: ask(one.open(1), "/"))

    [sidecar, server] = [shown.part(ID, part) for part in (SIDECAR, SERVER)]
    assert seen == b"hello"
    assert await stage.driver.list() == {ID}
    found = server["Config"]["Labels"]
    assert (found[REPLICA], found[PART], found[UID]) == (ID, SERVER, "")
    assert (found["fngate.holder"], found["fngate.function"]) == ("", "default/digits@1")
    assert [one["Type"] for one in server["Mounts"]] == []
    assert {*VOLUMES} < {*server["HostConfig"]["Tmpfs"]}
    assert server["State"].get("Health") is None
    assert "PORT=8000" in server["Config"]["Env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in server["Config"]["Env"]
    assert not any("nowhere" in one for one in sidecar["Config"]["Env"])
    await hardened(sidecar, server)

    later = await web.scenes.driver()
    stage.launcher._close_control(ID)
    assert await later.list() == {ID}
    await later.release(ID)
    await later.close()


async def hardened(*containers: dict[str, Any]) -> None:
    """Both containers have every field that keeps them from the host."""
    for one in containers:
        host = one["HostConfig"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert (host["ReadonlyRootfs"], host["Privileged"], host["Init"]) == (True, False, True)
        assert (host["IpcMode"], host["PidMode"], host["UTSMode"]) == ("private", "", "")
        assert (host["Binds"], host["Devices"], host["DeviceRequests"]) == (None, None, None)
        assert (host["PublishAllPorts"], host["PortBindings"]) == (False, None)
        assert (host["RestartPolicy"]["Name"], host["AutoRemove"]) == ("no", False)
        assert host["LogConfig"]["Type"] == "json-file"
        assert int(host["LogConfig"]["Config"]["max-size"]) <= 64 * 1024
        assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}["core"] == 0
        assert host["PidsLimit"] > 0
        assert host["MaskedPaths"]
        assert host["ReadonlyPaths"]


@pytest.mark.parametrize("name", amount(SOME, tuple(BY_ENGINE)))
async def test_an_image_that_the_engine_refuses_leaves_nothing(
    web: Web, shown: Containers, images: Variants, name: str
) -> None:
    """Neither of the containers; the reason is the engine's."""
    case = BY_ENGINE[name]
    image = images.make(case.links, **{"StopSignal": "SIGTERM", **case.config})
    stage = await web.scenes.stage()

    stage.launch(ID, web.binding(container={"image": image, **case.container}))
    lost = await stage.next(events.Lost)
    await stage.release(ID)

    assert case.reason in lost.reason
    assert len(lost.reason) < 2000
    assert shown.parts() == {}
