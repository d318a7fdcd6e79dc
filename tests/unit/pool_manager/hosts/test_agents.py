"""The agent of a host: started, adopted, and started again when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from hosts.commands import Completed
from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.hosts import agents
from pool_manager.hosts.agent import AGENT_ID, AgentReports
from pool_manager.hosts.agents import AgentKeeper
from pool_manager.hosts.control import HostControl
from pool_manager.hosts.folders import HostFolders
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from tests.support.modelled import Clock


class Driver:
    """Containers of agents, without an engine."""

    def __init__(self) -> None:
        self.running: ReplicaRecord | None = None
        self.started: list[ReplicaRecord] = []
        self.came = asyncio.Event()
        self.refused = asyncio.Event()
        self.error: Exception | None = None
        self.has_gpus = True

    async def start(self, record: ReplicaRecord, run_dir: Path, log: Path) -> None:
        if self.error:
            self.refused.set()
            raise self.error
        if record.device_kind == "cuda" and not self.has_gpus:
            raise DriverError("no NVIDIA container toolkit")
        self.running = record
        self.started.append(record)
        self.came.set()

    async def release(self, id: str) -> None:
        assert id == AGENT_ID
        self.running = None

    async def list(self) -> set[str]:
        if isinstance(self.error, EngineDown):
            self.refused.set()
            raise self.error
        return {AGENT_ID} if self.running else set()


class Rig:
    """A keeper with its driver; `commands` are those of the host's folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks = Tasks("rig")
        self.clock = Clock()
        self.control = HostControl("gpu2", self.tasks)
        self.driver = Driver()
        self.commands: list[str] = []
        self.folders = HostFolders("gpu2", self._run, PurePosixPath("/b"))
        self.keepers: list[AgentKeeper] = []
        self.keeper = self.make()

    def make(self) -> AgentKeeper:
        """Return the keeper of another server with the same files."""
        made = AgentKeeper(
            "gpu2",
            self.control,
            self.folder / "agent.json",
            PoolSettings(self.folder, self.folder, self.folder),
            AgentReports("gpu2", self.clock, self.clock),
            self.tasks,
            self.clock,
            lambda: None,
        )
        self.keepers.append(made)
        return made

    async def ensure(
        self, keeper: AgentKeeper, *, is_running: bool = False, has_gpus: bool = False
    ) -> None:
        driver: Any = self.driver
        await keeper.ensure(
            cast("DockerDriver", driver), self.folders, is_running=is_running, has_gpus=has_gpus
        )

    async def _run(self, command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        self.commands.append(command)
        return Completed(0, b"", b"")


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(agents, "AGAIN_S", (0.0, 0.0))
    made = Rig(tmp_path)
    yield made
    for keeper in made.keepers:
        keeper.close()
    made.control.close()
    await made.tasks.close()


async def test_a_running_agent_is_adopted_by_its_record(rig: Rig) -> None:
    """Without the record, or without the container, another one is started."""
    await rig.ensure(rig.keeper)
    assert rig.keeper.reason == "its agent does not report"
    await rig.ensure(rig.make(), is_running=True)
    assert len(rig.driver.started) == 1

    await rig.ensure(rig.make(), is_running=False)
    assert len(rig.driver.started) == 2
    await asyncio.to_thread((rig.folder / "agent.json").write_text, '{"id": "agent"}')
    await rig.ensure(rig.make(), is_running=True)
    assert len(rig.driver.started) == 3
    assert len({one.token for one in rig.driver.started}) == 3


async def test_the_end_of_a_former_container_starts_none(rig: Rig) -> None:
    """Ends are reported late: that of the container that was released for a new one, too."""
    await rig.ensure(rig.keeper)
    for _ in range(3):
        rig.keeper.exited("was killed by SIGKILL")
        assert rig.keeper._restarting is not None
        await rig.keeper._restarting

    assert len(rig.driver.started) == 1
    assert rig.keeper.reason == "its agent does not report"


async def test_an_agent_that_ends_is_started_again(rig: Rig) -> None:
    """After a pause, and once for ends that are reported together."""
    await rig.ensure(rig.keeper)
    rig.driver.running = None
    rig.driver.came.clear()

    rig.keeper.exited("exited with 70")
    rig.keeper.exited("exited with 70")
    await rig.driver.came.wait()

    assert len(rig.driver.started) == 2
    assert rig.driver.started[0].token != rig.driver.started[1].token


async def test_an_agent_is_started_when_the_engine_is_back(rig: Rig) -> None:
    """An engine that is restarted ends its containers and then does not answer; the connection to
    the host stands, so that it is not joined again."""
    await rig.ensure(rig.keeper)
    rig.driver.running, rig.driver.error = None, EngineDown("away")
    rig.driver.came.clear()
    rig.keeper.exited("was killed by SIGTERM")
    await rig.driver.refused.wait()

    rig.driver.error = None
    await rig.driver.came.wait()

    assert len(rig.driver.started) == 2


async def test_an_agent_that_was_ended_stays_so(rig: Rig) -> None:
    """Its record is removed, so that no later server adopts it."""
    await rig.ensure(rig.keeper)
    await rig.keeper.end()
    rig.keeper.exited("was killed by SIGKILL")

    assert rig.keeper._restarting is None
    assert rig.driver.running is None
    assert not list(rig.folder.iterdir())
    assert "rm -rf /b/run/agent" in rig.commands[-1]


async def test_without_gpus_for_containers_an_agent_still_reports(rig: Rig) -> None:
    """It is started without them, and says what is lacking."""
    rig.driver.has_gpus = False
    await rig.ensure(rig.keeper, has_gpus=True)

    [record] = rig.driver.started
    assert (record.device_kind, record.devices) == ("cpu", ())
    assert rig.keeper.reason == "its agent cannot see the GPUs: no NVIDIA container toolkit"


async def test_an_agent_that_cannot_be_started_does_not_keep_a_host_out(rig: Rig) -> None:
    """Only an engine that does not answer does. It is tried again."""
    rig.driver.error = DriverError("no room")
    await rig.ensure(rig.keeper)
    assert rig.keeper.reason == "its agent cannot be started: no room"
    rig.driver.error = None
    await rig.driver.came.wait()
    assert len(rig.driver.started) == 1

    rig.driver.error = EngineDown("away")
    with pytest.raises(EngineDown):
        await rig.ensure(rig.keeper)
