"""Contract tests of the two containers of a server function's replica, on a real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.drivers.docker.pairs import USER
from pool_manager.drivers.docker.spec import PART, REPLICA, SERVER, SIDECAR
from pool_manager.mounts import MountRules
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from registry.model.servers import Mount
from tests.support.containers import Containers
from tests.support.replicas import Stage, pool_settings
from tests.support.scenes import Engine, Scenes, a_record
from tests.support.sidecar_process import ask
from tests.support.web_servers import ID, IDS, Web, ends, write_bundle

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

CAP_MIB = 200
OPEN_S = 30.0


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[PoolSettings]:
    """Settings that let servers mount what the test has made."""
    with pool_settings(log_bytes=64 * 1024, mounts=MountRules((tmp_path,))) as made:
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
async def web(
    shown: Containers,
    engine: str,
    runtime_image: str,
    web_image: str,
    settings: PoolSettings,
    tmp_path: Path,
) -> AsyncIterator[Web]:
    """The server as an image."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    scenes = Scenes("docker", settings, write_bundle(bundle), Engine(engine, runtime_image))
    made = Web(scenes, web_image)
    yield made
    made.close()
    await scenes.close()


async def facts(web: Web, stage: Stage) -> dict[str, Any]:
    """Return what the server sees of its surroundings."""
    one = await web.gateway(stage)
    seen: dict[str, Any] = json.loads(await asyncio.to_thread(lambda: ask(one.open(1), "/facts")))
    return seen


async def test_a_server_is_confined(web: Web, shown: Containers) -> None:
    """The image's user without rights, folders that are named, and nothing of the sidecar's."""
    stage = await web.ready()
    seen = await facts(web, stage)

    assert seen["ids"] == list(IDS)
    assert (seen["capabilities"], seen["no_new_privileges"]) == (0, "1")
    refused = "Read-only file system"
    assert seen["writes"] == {
        "/": refused, "/opt": refused, "/cache": refused, "/data": "ran", "/tmp": "ran",
    }  # fmt: skip
    assert (seen["sizes"]["/data"], seen["sizes"]["/dev/shm"]) == (256, 64)
    assert seen["run"] is False
    assert len(seen["processes"]) == 2  # the engine's init and the server
    assert seen["folder"] == "/opt"
    assert str(stage.settings.run_dir) not in seen["unix"]
    assert seen["reserved"] == "8000"
    environment = seen["environment"]
    assert (environment["PORT"], environment["FROM_IMAGE"]) == ("8000", "1")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    [sidecar, server] = [shown.part(ID, part) for part in (SIDECAR, SERVER)]
    assert server["State"].get("Health") is None
    uid = sidecar["Config"]["User"].partition(":")[0]
    assert sidecar["Config"]["Labels"]["fngate.uid"] == uid
    assert int(uid) > 100_000
    assert sidecar["HostConfig"]["NetworkMode"] == "none"


async def test_a_server_gets_what_its_function_names(
    web: Web, shown: Containers, tmp_path: Path
) -> None:
    """Arguments, variables, user, capabilities, folders, memory."""
    for name in ("models", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text(name)
    given = {
        "arguments": ("${PORT}",),
        "env": {"ADDRESS": "${HOST}:${PORT}", "PORT": "1"},
        "user": "4999:4998",
        "capabilities": ("CHOWN",),
        "writable": {"/cache": 8, "/data": 16},
        "shm_mib": 5,
        "port": 81,
        "has_files": True,
        "mounts": (
            Mount("models", str(tmp_path / "models"), "/mnt/models"),
            Mount("kept", str(tmp_path / "kept"), "/opt", is_read_only=False),
        ),
    }

    stage = await web.ready(container=given, port=81, memory_mib=CAP_MIB)
    seen = await facts(web, stage)

    assert seen["ids"] == [4999, 4998]
    assert seen["environment"]["ADDRESS"] == "127.0.0.1:81"
    assert seen["environment"]["PORT"] == "81"
    assert seen["files"] == {"server.py": "Read-only file system"}
    assert seen["environment"]["FN_BUNDLE"] == "/function"
    assert seen["folder"] == "/opt"
    assert seen["sizes"] == {"/data": 16, "/cache": 8, "/dev/shm": 5}
    assert (seen["writes"]["/cache"], seen["writes"]["/data"]) == ("ran", "ran")
    assert seen["writes"]["/opt"] == "ran"
    assert (tmp_path / "kept" / "program").exists()
    assert seen["mounted"] == ["models"]
    server = shown.part(ID, SERVER)["HostConfig"]
    assert server["CapAdd"] == ["CHOWN"]
    assert (server["Memory"], server["MemorySwap"]) == (CAP_MIB * 2**20, CAP_MIB * 2**20)
    assert shown.part(ID, SIDECAR)["HostConfig"]["Memory"] == (64 + 34) * 2**20


class Kept:
    """Secrets by name."""

    def __init__(self, **values: str) -> None:
        self._values = values

    async def values(self, names: Collection[str]) -> dict[str, str]:
        """Return the values."""
        return {name: self._values[name] for name in names}


async def test_secrets_are_variables_and_nothing_else(web: Web, shown: Containers) -> None:
    """The server has the value as it is; neither the record nor the sidecar has it."""
    value = "s3cret-${PORT}"
    stage = await web.scenes.stage()
    stage.launcher._secrets = Kept(hf=value)
    stage.launch(ID, web.binding(secrets={"TOKEN": "hf"}))
    await stage.next(events.Loaded)

    seen = await facts(web, stage)
    record = (stage.settings.run_dir / ID / "replica.json").read_text()

    assert seen["environment"]["TOKEN"] == value
    assert "s3cret" not in record
    assert "s3cret" not in json.dumps(shown.part(ID, SIDECAR))
    assert "s3cret" not in json.dumps(shown.part(ID, SERVER)["Config"]["Labels"])


@pytest.mark.parametrize("part", [SIDECAR, SERVER])
@pytest.mark.parametrize("end", ["kill", "stop", "remove"])
async def test_the_end_of_either_container_is_the_replicas(
    web: Web, shown: Containers, part: str, end: str
) -> None:
    """It is reported once; the replica is listed no more, and its release leaves nothing."""
    stage = await web.ready()
    one = await web.gateway(stage)
    sock = await asyncio.to_thread(one.open, 1)
    await asyncio.to_thread(ask, sock, "/stream", to_end=False)
    id = shown.part(ID, part)["Id"]
    does = {
        "kill": lambda: shown.api.kill(id),
        "stop": lambda: shown.api.stop(id),
        "remove": lambda: shown.api.remove_container(id, force=True),
    }

    await asyncio.to_thread(does[end])
    told = await stage.exit(ID)
    listed = await stage.driver.list()
    await stage.release(ID)

    killed = f"lost its {part}, which was killed by SIGKILL"
    stopped = "lost its server, which exited with code 0 by itself (it must stay in the foreground)"
    if end == "stop":
        assert told == ("exited with code 0" if part == SIDECAR else stopped)
    else:
        assert told == killed
    assert (len(stage.exits), listed) == (1, set())
    assert await asyncio.to_thread(ends, sock)


async def test_a_stop_has_its_signal_and_its_grace(web: Web) -> None:
    """The image's STOPSIGNAL, after open exchanges were shut, and the last words are in the log."""
    stage = await web.ready()
    one = await web.gateway(stage)
    sock = await asyncio.to_thread(one.open, 1)
    await asyncio.to_thread(ask, sock, "/stream", to_end=False)
    began_s = asyncio.get_running_loop().time()

    await stage.release(ID)

    assert asyncio.get_running_loop().time() - began_s < 5.0
    assert await asyncio.to_thread(ends, sock)
    [(_, output)] = await stage.launcher.output.kept("digits")
    assert output.endswith(b"bye at SIGUSR1\n")


async def test_a_functions_own_stop_signal_counts(web: Web) -> None:
    """It replaces the image's."""
    stage = await web.ready(container={"stop_signal": "SIGTERM"})

    await stage.release(ID)

    [(_, output)] = await stage.launcher.output.kept("digits")
    assert output.endswith(b"bye at SIGTERM\n")


async def test_a_server_that_ignores_its_signal_is_killed(web: Web, shown: Containers) -> None:
    """After its grace, not before."""
    stage = await web.ready("stay", stop_grace_s=1.0)
    began_s = asyncio.get_running_loop().time()

    await stage.release(ID)

    assert asyncio.get_running_loop().time() - began_s >= 1.0
    assert shown.parts() == {}


@pytest.mark.parametrize("part", [SIDECAR, SERVER])
async def test_a_paused_container_can_be_released(web: Web, shown: Containers, part: str) -> None:
    """A paused container counts as running, and its release ends it."""
    stage = await web.ready(stop_grace_s=1.0)
    shown.api.pause(shown.part(ID, part)["Id"])

    assert await stage.driver.list() == {ID}
    await stage.release(ID)

    assert shown.parts() == {}


async def test_an_out_of_memory_kill_names_the_cap(web: Web) -> None:
    """The server's cap is the function's, and the sidecar has its own."""
    stage = await web.ready(memory_mib=CAP_MIB)
    one = await web.gateway(stage)
    with pytest.raises((EOFError, ConnectionResetError)):
        await asyncio.to_thread(lambda: ask(one.open(1), "/eat"))

    lost = await stage.next(events.Lost)

    killed = f"ran out of memory and was killed by SIGKILL (its memory cap is {CAP_MIB} MiB)"
    assert lost.reason == killed


async def test_a_child_that_runs_out_of_memory_is_no_end(web: Web) -> None:
    """The server lives on; its later exit is not put down to memory."""
    stage = await web.ready(memory_mib=CAP_MIB)
    one = await web.gateway(stage)
    assert await asyncio.to_thread(lambda: ask(one.open(1), "/child-eats")) == b"hello"
    assert stage.exits == []

    with pytest.raises((EOFError, ConnectionResetError)):
        await asyncio.to_thread(lambda: ask(one.open(2), "/exit"))

    assert await stage.exit(ID) == "lost its server, which exited with code 3"


async def test_a_replica_counts_only_with_both(web: Web, shown: Containers) -> None:
    """What an earlier server has left of a replica is removed, the server's container first: of one
    whose sidecar has ended, of one killed between the two containers, and before a start."""
    earlier = await web.ready()
    earlier.launcher._close_control(ID)
    await earlier.abandon()
    shown.api.kill(shown.part(ID, SIDECAR)["Id"])
    alone = shown.leave(web.image, {REPLICA: "aaaa0002", PART: SIDECAR})
    shown.api.start(alone)
    shown.leave(web.image, {REPLICA: "aaaa0002", PART: SERVER})
    shown.leave(web.image, {REPLICA: "aaaa0003", PART: USER})

    later = await web.scenes.stage()

    assert await later.driver.list() == set()
    assert shown.parts() == {}


async def test_a_pair_can_be_released_while_it_starts(web: Web, shown: Containers) -> None:
    """The release waits for the start, and then ends both containers."""
    stage = await web.scenes.stage()
    stage.launch(ID, web.binding())
    await shown.until(lambda: (ID, SIDECAR) in shown.parts())

    await stage.release(ID)

    assert shown.parts() == {}


async def test_the_next_driver_learns_of_an_end_that_it_missed(web: Web, shown: Containers) -> None:
    """An adopted replica reports the end of its server."""
    earlier = await web.ready()
    earlier.launcher._close_control(ID)
    await earlier.abandon()
    later = await web.scenes.stage()
    assert await later.driver.list() == {ID}

    shown.api.kill(shown.part(ID, SERVER)["Id"])

    assert await later.exit(ID) == "lost its server, which was killed by SIGKILL"
    await later.driver.release(ID)
    assert shown.parts() == {}


async def test_a_release_without_adoption_has_grace(web: Web, shown: Containers) -> None:
    """A replica that speaks another link version is stopped as any other."""
    earlier = await web.ready()
    earlier.launcher._close_control(ID)
    await earlier.abandon()

    driver = await web.scenes.driver()
    await driver.release(ID)
    await driver.close()

    assert shown.parts() == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": f"sha256:{'0' * 64}"}, "is no longer on the engine: deploy the function again"),
        ({"stop_signal": "SIGNONE"}, "nvalid signal"),
        ({"network": "egress"}, "expected the engine's network bridge, got none"),
        ({"user": "", "capabilities": ("NONE",)}, "nvalid"),
        ({"mounts": (Mount("gone", "/nowhere/at/all", "/mnt"),)}, "source path does not exist"),
    ],
)
async def test_a_start_that_the_engine_refuses_leaves_nothing(
    web: Web, shown: Containers, change: dict[str, Any], said: str
) -> None:
    """The reason is the engine's, and no sidecar stays."""
    stage = await web.scenes.stage()
    container = web.binding().container
    assert container is not None
    record, folder = replace(a_record(), engine="server"), stage.settings.run_dir / a_record().id
    folder.mkdir()
    (stage.settings.model_dir / record.id).mkdir()

    with pytest.raises(DriverError, match=said):
        await stage.driver.start(record, folder, folder / "log", replace(container, **change))
    await stage.driver.release(record.id)

    assert shown.parts() == {}


async def test_a_sidecar_that_ends_at_its_start_says_why(web: Web, shown: Containers) -> None:
    """Its own last line is the reason: its record is missing."""
    stage = await web.scenes.stage()
    record, folder = replace(a_record(), engine="server"), stage.settings.run_dir / a_record().id
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (stage.settings.model_dir / record.id).mkdir()

    container = web.binding().container
    try:
        await stage.driver.start(record, folder, folder / "log", container)
    except DriverError as error:
        # The server's start came after the sidecar's end.
        assert "the sidecar exited with code" in error.message  # noqa: PT017 - either may come first
    else:
        assert (await stage.exit(record.id)).startswith("lost its sidecar, which exited with code")
    await stage.driver.release(record.id)

    assert shown.parts() == {}
