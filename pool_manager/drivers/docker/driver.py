"""Replicas as containers: one each, apart from the host and from each other."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import docker
import structlog

from pool_manager.driver import OnEngineLost, OnExit
from pool_manager.drivers.docker import containers, shape
from pool_manager.drivers.docker.endings import how
from pool_manager.drivers.docker.engine import Engine
from pool_manager.drivers.docker.gpu import Way, ways
from pool_manager.drivers.docker.holders import Holders
from pool_manager.drivers.docker.image import check_image
from pool_manager.drivers.docker.listener import Listener
from pool_manager.drivers.docker.shape import OWNER, REPLICA, Owner, Place
from pool_manager.drivers.docker.starting import Start, begin
from registry.errors import DriverError, EngineDown
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()
T = TypeVar("T")

ROOT: Final = 0
LIMIT_AFTER_S: Final = 0.5
LIMIT_RETRY_S: Final = 1.0
OWN_USER: Final = 10001
"""User and group of replicas where the server is root; else they are the server's."""


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """`images` by device kind; `data` is what tells this server's containers from another's."""

    url: str
    images: dict[str, str]
    data: Path
    model_root: Path
    log_bytes: int
    starts_at_once: int


@dataclass(slots=True)
class _Container:
    """One replica's container; `id` is "" until it is made. `is_told`: its end was reported."""

    id: str = ""
    is_told: bool = False
    out_of_memory: bool = False


class DockerDriver:
    """Starts a container of the runtime image for each replica.

    The engine may go away and come back: what it runs runs on (live-restore), and what ended
    meanwhile is found when the containers are listed again.
    """

    kind = "docker"

    def __init__(self, settings: DockerSettings, engine: Engine, info: dict[str, Any]) -> None:
        """`info` is what the engine tells of itself. `open` makes one."""
        self.on_exit: OnExit = lambda _id, _how: None
        self.on_engine_lost: OnEngineLost = lambda _reason: None
        self._settings = settings
        self._engine = engine
        self._ways: list[Way] = ways(info)
        uid, gid = self.replica_user or (os.getuid(), os.getgid())
        self._owner = Owner(shape.owner_name(settings.data), f"{uid}:{gid}")
        self._containers: dict[str, _Container] = {}
        self._tasks = Tasks("docker driver")
        self._holders = Holders(engine, settings.images["cpu"], self._owner, self._tasks)
        self._listener: Listener | None = None

    @classmethod
    async def open(cls, settings: DockerSettings) -> DockerDriver:
        """Raises EngineDown where the engine gives no answer, DriverError where an image is
        missing or speaks another version of the link."""
        engine = await asyncio.to_thread(Engine, settings.url, settings.starts_at_once)
        try:
            for kind, image in settings.images.items():
                found = await engine.call(f"use image {image}", _inspection(image))
                check_image(image, kind, found)
            info = await engine.call("ask what it can", lambda client: client.info())
        except BaseException:
            engine.close()
            raise
        return cls(settings, engine, info)

    @property
    def replica_user(self) -> tuple[int, int] | None:
        """Containers run as nobody in particular, not as root."""
        return (OWN_USER, OWN_USER) if os.getuid() == ROOT else None

    def model_path(self, model_dir: Path) -> str:  # noqa: ARG002 - the same in each container
        """Where the model folder is mounted."""
        return shape.MODEL_TARGET

    async def start(self, record: ReplicaRecord, run_dir: Path, log: Path) -> None:  # noqa: ARG002
        """Create and start the container; `log` is written by `save_log`."""
        image = self._settings.images.get(record.device_kind)
        if image is None:
            raise DriverError(f"there is no runtime image for devices of kind {record.device_kind}")
        place = Place(run_dir, self._settings.model_root / record.id, self._settings.log_bytes)
        # A standby is in nobody's way: its network may be made with it.
        holder = self._holders.take() if record.role != "standby" else None
        start = Start(
            shape.container_name(record, self._owner),
            shape.replica(record, image, self._owner, place),
            holder,
            record.device if record.device_kind != "cpu" else "",
            tuple(self._ways),
        )
        # Known before it runs: it may have ended before its start returns.
        made = self._containers[record.id] = _Container()
        try:
            started = await self._engine.start("start a container", lambda c: begin(c, start))
        except BaseException:
            self._containers.pop(record.id, None)
            raise
        finally:
            if holder is not None:
                self._holders.discard(holder)
            self._holders.refill()
        made.id = started.container
        if started.way is not None:
            # What worked once is tried first from now on.
            self._ways.sort(key=lambda way: way is not started.way)

    async def list(self) -> set[str]:
        """Adopt what runs; what does not, and is nobody's, is removed."""
        if self._listener is None:
            self._listener = Listener(
                self._settings.url,
                {"type": "container", "event": ["die", "oom"], "label": self._label},
                self._heard,
                self._connected,
                lambda reason: self.on_engine_lost(reason),
            )
        # Of those alone it is known that they ran before the list was made.
        before = {id: known.id for id, known in self._containers.items() if known.id}
        listed = await self._call("list containers", containers.owned, self._owner.name)
        running = {containers.replica_id(one): one["Id"] for one in listed if _is_alive(one)}
        for id, container in running.items():
            self._containers.setdefault(id, _Container(container))
        self._holders.sync({one["Id"] for one in listed if _is_holding(one)})
        for one in listed:
            if containers.replica_id(one) not in self._containers and not _is_holding(one):
                # Of a server that was killed, or of a start that the engine's end cut off.
                await self._call("remove a container", containers.remove, one["Id"])
        for id, container in before.items():
            if id not in running:
                await self._missed(id, container)
        # The engine tells of an end a moment before its list shows it.
        return {id for id in running if not self._containers[id].is_told}

    @property
    def _label(self) -> str:
        return f"{OWNER}={self._owner.name}"

    async def _missed(self, id: str, container: str) -> None:
        """It ended while nobody listened."""
        ending = await self._call("look at a container", containers.ending, container)
        known = self._containers.get(id)
        if ending is not None and known is not None:
            known.out_of_memory |= ending.out_of_memory
            self._tell(id, ending.code)

    def _connected(self) -> None:
        """Events come from now on; what happened before, nobody heard."""
        self._tasks.spawn("list", self._list_again())

    async def _list_again(self) -> None:
        try:
            await self.list()
        except DriverError as error:
            log.warning("containers could not be listed", reason=error.message)
        self._holders.refill(0.0)

    def _heard(self, event: dict[str, Any]) -> None:
        actor = event.get("Actor") or {}
        attributes = actor.get("Attributes") or {}
        known = self._containers.get(attributes.get(REPLICA, ""))
        if known is None:
            self._holders.ended(str(actor.get("ID")))
        elif event.get("Action") == "oom":
            known.out_of_memory = True
        else:
            self._tell(attributes[REPLICA], int(attributes.get("exitCode", -1)))

    def _tell(self, id: str, code: int | None) -> None:
        known = self._containers[id]
        if not known.is_told:
            known.is_told = True
            self.on_exit(id, how(code, out_of_memory=known.out_of_memory))

    async def limit(self, record: ReplicaRecord) -> None:
        """Memory and CPU time, and a name after what is served now.

        Setting them stops everything in a container for milliseconds, so it waits until the first
        answer is given, unless the model needs more than a standby has.
        """
        known = self._containers.get(record.id)
        if known is None or known.is_told:
            raise DriverError(f"cannot limit {record.id}: it does not run")
        if record.memory_mib > shape.STANDBY_CAP_MIB:
            await self._limit(known, record)
        else:
            self._tasks.spawn(f"limit {record.id}", self._limit_soon(known, record))

    async def _limit_soon(self, known: _Container, record: ReplicaRecord) -> None:
        """One that has taken more by then than it may have is ended as if it had been limited."""
        await asyncio.sleep(LIMIT_AFTER_S)
        while not known.is_told:
            try:
                await self._limit(known, record)
            except EngineDown:
                await asyncio.sleep(LIMIT_RETRY_S)
            except DriverError as error:
                log.warning("a replica cannot be limited", replica=record.id, reason=error.message)
                known.out_of_memory = True
                with contextlib.suppress(DriverError):
                    await self._call("end a container", containers.kill, known.id)
                return
            else:
                return

    async def _limit(self, known: _Container, record: ReplicaRecord) -> None:
        name, limits = shape.container_name(record, self._owner), shape.limits(record)
        await self._call("limit a container", containers.limit, known.id, limits, name)

    async def save_log(self, id: str, log: Path) -> None:
        """Write down what the engine keeps of the replica's output."""
        if container := await self._find(id):
            output = await self._call("read a log", containers.output, container)
            await asyncio.to_thread(log.write_bytes, output)

    async def pids(self, id: str) -> frozenset[int] | None:
        """The processes of the container, by the host's numbers."""
        container = await self._find(id)
        return await self._call("list processes", containers.pids, container) if container else None

    async def terminate(self, id: str) -> None:
        """TERM to its first process, which passes it on."""
        if container := await self._find(id):
            await self._call("end a container", containers.terminate, container)

    async def release(self, id: str) -> None:
        """Kill and remove the container."""
        container = await self._find(id)
        try:
            if container:
                await self._call("remove a container", containers.remove, container)
        except TimeoutError as error:
            raise DriverError(str(error)) from error
        if id in self._containers:
            self._tell(id, None)
            del self._containers[id]

    async def _find(self, id: str) -> str:
        """Its container's id; of one that an earlier server left, too. "" where there is none."""
        if known := self._containers.get(id):
            return known.id
        listed = await self._call("list containers", containers.owned, self._owner.name)
        return next((one["Id"] for one in listed if containers.replica_id(one) == id), "")

    async def close(self) -> None:
        """Remove the holders and stop listening; replicas go on."""
        if self._listener is not None:
            await asyncio.to_thread(self._listener.close)
        await self._tasks.close()
        self._holders.close()
        with contextlib.suppress(DriverError):
            await self._call("remove holders", containers.remove_holders, self._owner.name)
        self._engine.close()

    async def _call(self, doing: str, work: Callable[..., T], *arguments: Any) -> T:
        return await self._engine.call(doing, lambda client: work(client, *arguments))


def _inspection(image: str) -> Callable[[docker.APIClient], dict[str, Any]]:
    return lambda client: client.inspect_image(image)


def _is_alive(listed: dict[str, Any]) -> bool:
    return bool(containers.replica_id(listed)) and containers.is_running(listed)


def _is_holding(listed: dict[str, Any]) -> bool:
    return containers.is_holder(listed) and containers.is_running(listed)
