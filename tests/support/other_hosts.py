"""A manager with one function that may run on another host alone, and a gateway's delivery.

As a program it is such a manager, which is to be killed:

    python -m tests.support.other_hosts JSON

It prints the id of its replica once it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.data_links import Delivered, Outcome
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from hosts.tls.door import LinkDoor
from pool_manager.core.state import PoolSpec, Replica
from pool_manager.devices import cpu_slots
from pool_manager.drivers.uids import DEFAULT, parse_range
from pool_manager.host import HostView
from pool_manager.hosts.kinds import EngineFactory
from pool_manager.hosts.settings import HostSettings
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from pool_manager.settings import PoolSettings
from registry.exchange import Endpoints, decode_endpoints
from registry.model.devices import DeviceModel, Use
from registry.model.history import ColdStart, StateInterval
from registry.model.hosts import Host, SshHost
from registry.tasks import Tasks
from runtime_image.contract.model import ModelSpec
from tests.support.fake_driver.driver import FakeDriver
from tests.support.peers import Client, KnownPast
from tests.support.replicas import KEY, ROW, ModelFolder

HOST = "gpu2"
UNTIL_S = 60.0
LOOK_S = 0.2
"""Seconds after which a condition without an event is tested again."""


@dataclass(frozen=True)
class Place:
    """Where a manager and its host are: the folder of the function's files, the login, this
    machine's engine and the runtime image."""

    folder: str
    address: str
    host_key: str
    identity: str
    engine: str
    image: str


class Recorder:
    """Keeps nothing."""

    def cold_start(self, record: ColdStart) -> None:
        """Ignore the record."""

    def state_interval(self, record: StateInterval) -> None:
        """Ignore the record."""

    def use(self, record: Use) -> None:
        """Ignore the record."""

    def device_model(self, record: DeviceModel) -> None:
        """Ignore the record."""


class House:
    """The manager, the gateway's delivery, and their messages. Its function runs on the host `name`
    alone, which the definition `host` brings."""

    def __init__(
        self,
        settings: PoolSettings,
        folder: Path,
        host: Host,
        *,
        name: str = "",
        remote: HostSettings | None = None,
        engine_of: EngineFactory | None = None,
        door: LinkDoor | None = None,
    ) -> None:
        self.host, self.name = host, name or host.name
        self.files = ModelFolder(folder)
        self.manager = Manager(
            settings,
            FakeDriver(),
            cpu_slots(1),
            self.files,
            Recorder(),
            remote=remote,
            engine_of=engine_of,
            door=door,
        )
        self.delivery = Delivery(Limits(), "worker", self.manager, KnownPast())
        self.last = Endpoints(0, True, {})
        self._changed = asyncio.Event()
        self.manager.subscribe_hosts(lambda _name: self._changed.set())
        self.manager.subscribe_decisions(lambda _key, _decision: self._changed.set())
        self.manager.subscribe(self._on_endpoints)
        self.on_start: Callable[[], object] = lambda: None
        """Called once the manager has started, to bring its host up."""

    @classmethod
    def over_ssh(cls, settings: PoolSettings, place: Place) -> House:
        """Return one with the host of a place."""
        remote = HostSettings(
            server="test",
            images={"cpu": place.image, "cuda": place.image},
            uids=parse_range(DEFAULT),
            engine_url=place.engine,
        )
        host = SshHost(
            HOST,
            address=place.address,
            host_key=place.host_key,
            identity=place.identity,
            cpu_slots=3,
        )
        return cls(settings, Path(place.folder), host, remote=remote)

    def _on_endpoints(self, data: bytes) -> None:
        self.last = decode_endpoints(data)
        self._changed.set()
        self.delivery.receive_endpoints(data)

    async def open(self, **changes: Any) -> None:
        """Start the manager, with the host and the function; return when the host is up."""
        self.manager.define_host(self.host)
        await self.manager.start()
        self.on_start()
        self.delivery.open()
        self.define("digits", **changes)
        await self.until(lambda: self.manager.host(self.name) is not None)
        await self.until(lambda: self.view.state == "up" and not self.view.agent)

    def define(self, name: str, model: ModelSpec | None = None, **changes: Any) -> None:
        """Deploy a function with all files of the folder, whose calls may not run again. It runs on
        a CPU slot, unless `changes` say otherwise."""
        fields: dict[str, Any] = {
            "device_kind": "cpu",
            "labels": (("host", self.name),),
            "may_rerun": False,
            **changes,
        }
        key, model = f"default/{name}@1", model or ModelSpec(f"{name}@1", model="add_one.onnx")
        spec = PoolSpec(key, function=key[:-2], **fields)
        self.manager.define(spec, Binding(model, self.files.bundle(), "default", name, 1))

    async def close(self) -> None:
        """End the replicas and the agent."""
        await self.delivery.close()
        await self.manager.close()

    @property
    def view(self) -> HostView:
        """Return the host."""
        found = self.manager.host(self.name)
        assert found is not None
        return found

    @property
    def replicas(self) -> list[Replica]:
        """Return the replicas on the host that are bound or will be."""
        there = self.manager.replicas()
        return [one for one in there if one.host == self.name and one.pool == KEY]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a state."""
        try:
            async with asyncio.timeout(UNTIL_S):
                while not condition():
                    self._changed.clear()
                    await self._look()
        except TimeoutError:
            raise AssertionError(
                f"not in time: {self.view}, {self.replicas}, {self.manager.decisions(KEY)}"
            ) from None

    async def _look(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), LOOK_S)

    async def until_ready(self) -> str:
        """Return the id of the function's only replica once it is ready."""
        warmed = await self.manager.warm(KEY, timeout_s=UNTIL_S)
        assert warmed.outcome == "ready", (warmed, self.manager.decisions(KEY), self.view)
        [replica] = self.replicas
        return replica.id

    async def call(self, key: str = KEY, body: bytes = ROW) -> Outcome:
        """Make one call through the gateway's delivery."""
        client = Client()
        self.delivery.submit(client.call(body, pool=key))
        return await asyncio.wait_for(client.outcomes.get(), UNTIL_S)

    async def answers(self) -> bool:
        """Whether a call is answered with what the model returns."""
        outcome = await self.call()
        assert isinstance(outcome, Delivered), outcome
        return b"[2.0" in bytes(outcome.body) or b"[[2" in bytes(outcome.body)


@asynccontextmanager
async def house(settings: PoolSettings, place: Place, **changes: Any) -> AsyncIterator[House]:
    """Run a manager whose host is up, until the block ends."""
    made = House.over_ssh(settings, place)
    try:
        await made.open(**changes)
        yield made
    finally:
        await made.close()


class Killed:
    """A manager of its own process, with a ready replica, until it is killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, root: Path, place: Place) -> Killed:
        """Start the process, whose settings have their folders below `root`."""
        words = json.dumps({"root": str(root), "place": asdict(place)})
        program = (sys.executable, "-m", "tests.support.other_hosts", words)
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe))

    async def replica(self) -> str:
        """Return the id of its replica once it is ready."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), UNTIL_S)
        return line.decode().strip()

    async def kill(self) -> None:
        """End it without a chance to end anything."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


async def _main(root: Path, place: Place) -> None:
    folders = {"run_dir": root / "r", "model_dir": root / "m", "log_dir": root / "l"}
    one = House.over_ssh(PoolSettings(**folders), place)
    await one.open()
    sys.stdout.write(f"{await one.until_ready()}\n")
    sys.stdout.flush()
    tasks = Tasks("main")
    await tasks.spawn("wait", asyncio.Event().wait())


if __name__ == "__main__":
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    given = json.loads(sys.argv[1])
    asyncio.run(_main(Path(given["root"]), Place(**given["place"])))
