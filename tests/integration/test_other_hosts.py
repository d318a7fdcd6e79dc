"""Replicas on another host: a real sshd, a real engine, its own disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core.state import PoolSpec
from pool_manager.devices import cpu_slots
from pool_manager.drivers.fake import FakeDriver
from pool_manager.drivers.uids import DEFAULT, parse_range
from pool_manager.hosts.settings import HostSettings
from pool_manager.hosts.view import HostView
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from pool_manager.settings import PoolSettings
from registry.exchange import Endpoints, decode_endpoints
from registry.model import ColdStart, Host, StateInterval, Use
from runtime_image.contract.model import ModelSpec
from tests.support import models
from tests.support.fleet.fleet import open_fleet
from tests.support.fleet.host import Host as Machine
from tests.support.fleet.host import Plan
from tests.support.replicas import ModelFolder, pool_settings

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

UNTIL_S = 60.0
KEY = "default/digits@1"
HOST = "gpu2"
THERE = (("host", HOST),)


class Recorder:
    """Keeps nothing."""

    def cold_start(self, record: ColdStart) -> None:
        pass

    def state_interval(self, record: StateInterval) -> None:
        pass

    def use(self, record: Use) -> None:
        """Ignore the record."""


class House:
    """A manager with one function, which may run on the other host alone."""

    def __init__(
        self, settings: PoolSettings, folder: Path, machine: Machine, engine: str, image: str
    ) -> None:
        remote = HostSettings(
            server="test",
            images={"cpu": image},
            uids=parse_range(DEFAULT),
            engine_url=engine,
        )
        self.files = ModelFolder(folder)
        self.driver = FakeDriver()
        self.manager = Manager(
            settings, self.driver, cpu_slots(1), self.files, Recorder(), remote=remote
        )
        self.machine = machine
        self._changed = asyncio.Event()
        self.manager.subscribe_hosts(lambda _name: self._changed.set())
        self.messages: list[Endpoints] = []
        self.manager.subscribe(lambda data: self.messages.append(decode_endpoints(data)))
        self.manager.define_host(
            Host(
                HOST,
                machine.address,
                host_key=machine.host_key,
                identity=str(machine.identity),
                cpu_slots=2,
            )
        )

    async def start(self, **changes: Any) -> None:
        """Start the manager, with the function."""
        await self.manager.start()
        spec = PoolSpec(KEY, function="default/digits", labels=THERE, **changes)
        bundle = self.files.bundle()
        model = ModelSpec("digits@1", model="add_one.onnx")
        self.manager.define(spec, Binding(model, bundle, "default", "digits", 1))

    def view(self) -> HostView:
        """Return the other host."""
        found = self.manager.host(HOST)
        assert found is not None
        return found

    async def until(self, condition: Callable[[HostView], bool]) -> HostView:
        """Wait for a state of the host."""
        try:
            async with asyncio.timeout(UNTIL_S):
                while not condition(self.view()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"not in time: {self.view()}")
        return self.view()

    async def until_ready(self) -> str:
        """Return the id of the function's only replica once it is ready."""
        warmed = await self.manager.warm(KEY, timeout_s=UNTIL_S)
        assert warmed.outcome == "ready", (warmed, self.manager.decisions(KEY), self.view())
        [replica] = self.manager.replicas()
        return replica.id


@pytest.fixture(scope="module")
def machine(runtime_image: str) -> Iterator[Machine]:
    with open_fleet(Plan(user="worker"), images=(runtime_image,)) as fleet:
        yield fleet.first
        assert fleet.left() == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "bundle"
    found.mkdir()
    models.add_one(found)
    return found


@asynccontextmanager
async def house(
    settings: PoolSettings, folder: Path, machine: Machine, engine: str, image: str
) -> AsyncIterator[House]:
    """A manager until the block ends."""
    made = House(settings, folder, machine, engine, image)
    try:
        yield made
    finally:
        await made.manager.close()


async def test_a_function_runs_on_another_host(
    machine: Machine, folder: Path, engine: str, runtime_image: str
) -> None:
    """A function that may run there alone starts there; gateways learn its path, host and greeting;
    at the end nothing of it is left on the host but its files."""
    with pool_settings() as settings:
        async with house(settings, folder, machine, engine, runtime_image) as one:
            await one.start()
            up = await one.until(lambda view: view.state == "up")
            id = await one.until_ready()
            one.manager.receive_demand(
                b"\x84\xa6worker\xa1w\xa3seq\x01\xa4full\xc3\xa9revisions\x80"
            )
            [endpoint] = one.messages[-1].pools[KEY].replicas
            host = one.messages[-1].hosts[HOST]
            [listed] = [one for one in machine.containers() if "digits" in str(one["Names"])]
            assert endpoint.id == id
            assert endpoint.host == HOST
            assert endpoint.path.startswith(f"{machine.home}/.fngate/")
            assert endpoint.path.endswith(f"/data/{id}/data.sock")
            assert len(endpoint.greeting) == 64
            assert host.address == machine.address
            assert listed["State"] == "running"
            assert up.cpu_slots == 2
        assert machine.containers() == []
