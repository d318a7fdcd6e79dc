"""Docker driver: one container per replica, isolated from the host and from other replicas."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import docker
import structlog

from pool_manager.driver import EngineLosses, Exit, Exits, Processes
from pool_manager.drivers.docker import containers, spec
from pool_manager.drivers.docker.containers import (
    Parts,
    Start,
    Started,
    begin,
    check_image,
    check_users,
    inspection,
    maps_users,
)
from pool_manager.drivers.docker.engine import Engine, Times, is_too_large
from pool_manager.drivers.docker.events import (
    ContainerEvent,
    EndedWhileListing,
    EventListener,
    KnownContainer,
    read_event,
)
from pool_manager.drivers.docker.images import DockerImages
from pool_manager.drivers.docker.network_holders import NetworkHolders
from pool_manager.drivers.docker.pairs import (
    STRANGER_S,
    ImageUsers,
    Machine,
    PairEnd,
    PairStart,
    begin_pair,
    this_machine,
)
from pool_manager.drivers.docker.processes import ContainerProcesses
from pool_manager.drivers.docker.server_spec import Pair
from pool_manager.drivers.docker.spec import OWNER, MountPaths, Owner, Way, ways
from pool_manager.drivers.environment import MODEL_TARGET, STANDBY_CAP_MIB
from pool_manager.drivers.uids import DEFAULT, SLICE, UidAllocator, parse_range, slice_of
from pool_manager.images import Images
from pool_manager.ports import ServerContainer
from pool_manager.replicas.logs import Ask, Spool
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown
from registry.model.hosts import Ability
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Settings of the Docker driver.

    `images` are by device kind. `owner` distinguishes this server's containers from those of other
    servers. `uids` is the range from which they get a slice of user ids. `pool` are the settings of
    the pool manager. `base` is the folder of ours on the engine's machine, None if that has the
    folders of this process. `machine` describes that machine.
    """

    url: str
    images: dict[str, str]
    owner: Owner
    pool: PoolSettings
    uids: range = field(default_factory=lambda: parse_range(DEFAULT))
    times: Times = field(default_factory=Times)
    base: Path | None = None
    machine: Callable[[], Machine] = this_machine

    def paths(self, id: str, run_dir: Path) -> MountPaths:
        """Return a replica's folders on the engine's machine; `run_dir` is its run folder on this
        one."""
        if self.base is not None:
            return MountPaths.below(self.base, id, self.pool.log_bytes)
        return MountPaths(run_dir, self.pool.model_dir / id, self.pool.log_bytes)


class DockerDriver:
    """Starts a container of the runtime image for each replica; for the replica of an image, the
    sidecar's container and the server's.

    The engine may stop and return: its containers continue to run (live-restore), and those that
    ended in the meantime are found when the containers are listed again.
    """

    kind = "docker"
    is_contained = True
    abilities = frozenset({Ability.IMAGE})

    def __init__(self, settings: DockerSettings, engine: Engine, info: dict[str, Any]) -> None:
        """`info` is the engine's answer of GET /info. Use `open` to create a driver."""
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self._settings, self._engine = settings, engine
        self._ways: list[Way] = ways(info)
        self._owner = settings.owner
        self._images_by_kind = dict(settings.images)
        self.images: Images | None = DockerImages(
            engine, settings.url, self._owner.name, maps_users=maps_users(info)
        )
        self.processes: Processes = ContainerProcesses(engine, self._find_settled)
        uids = slice_of(settings.uids, self._owner.name)
        self._uids = UidAllocator(uids, secrets.randbelow(SLICE))
        self._containers: dict[str, KnownContainer] = {}
        self._tasks = Tasks("docker driver")
        times, image = settings.times, settings.images["cpu"]
        self._holders = NetworkHolders(
            engine, image, self._owner, self._uids.holder, self._tasks, times.refill_after_s
        )
        self._limiter = ContainerLimiter(engine, self._owner, self._tasks, times)
        self._users, self._pair_end = ImageUsers(), PairEnd(engine)
        self._listener: EventListener | None = None
        self._ended, self._spool = EndedWhileListing(), Spool()
        self._is_closed = False

    @classmethod
    async def open(cls, settings: DockerSettings) -> DockerDriver:
        """Connect to the engine and check it. Raises EngineDown without an engine, DriverError if
        the engine, an image or a setting is unsuitable."""
        engine = await asyncio.to_thread(
            Engine, settings.url, settings.pool.starts_at_once, settings.times
        )
        try:
            info = await engine.call("query the engine", lambda client: client.info())
            check_users(info)
            for kind, image in settings.images.items():
                await _check(engine, kind, image)
        except BaseException:
            engine.close()
            raise
        return cls(settings, engine, info)

    async def info(self) -> dict[str, Any]:
        """Return facts about the engine and its machine: the answer of GET /info."""
        return await self._engine.call("query the engine", lambda client: client.info())

    async def add_image(self, kind: str, image: str) -> None:
        """Use this runtime image for devices of a kind from now on. Raises DriverError if it is
        unsuitable."""
        await _check(self._engine, kind, image)
        self._images_by_kind[kind] = image

    def model_path(self, model_dir: Path) -> str:  # noqa: ARG002 - the same in each container
        """Return the mount point of the model folder, the same in each container."""
        return MODEL_TARGET

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,  # noqa: ARG002 - written by `save_log`
        server: ServerContainer | None = None,
    ) -> None:
        """Create and start the container, or with `server` the sidecar's and the server's."""
        paths = self._settings.paths(record.id, run_dir)
        if server is None:
            await self._start_replica(record, paths)
        else:
            await self._start_pair(record, paths, server)

    async def _start_replica(self, record: ReplicaRecord, paths: MountPaths) -> None:
        # An agent reads GPUs by the driver's library, which the engine gives to any image.
        kind = record.device_kind if record.engine != spec.AGENT else "cpu"
        image = self._images_by_kind.get(kind)
        if image is None:
            raise DriverError(f"no runtime image for devices of kind {kind}")
        uid = self._uids.take(record.id)
        # No caller waits for a standby, so its network may be created with it.
        holder = self._holders.take() if record.role != "standby" else None
        configure = spec.agent if record.engine == spec.AGENT else spec.replica
        start = Start(
            spec.container_name(record, self._owner),
            configure(record, image, self._owner, paths, uid),
            holder.container if holder else None,
            spec.gpus_of(record),
            tuple(self._ways),
        )
        try:
            await self._start(record.id, lambda client: begin(client, start))
        finally:
            if holder is not None:
                self._holders.discard(holder)
            self._holders.refill()

    async def _start_pair(
        self, record: ReplicaRecord, paths: MountPaths, server: ServerContainer
    ) -> None:
        # The sidecar makes its own network, not a holder: a server takes seconds to start anyway,
        # and the network's settings depend on the function.
        start = PairStart(
            Pair(record, server, self._owner, paths),
            self._images_by_kind["cpu"],
            self._uids.take(record.id),
            spec.gpus_of(record),
            tuple(self._ways),
            self._users,
            self._settings.machine,
        )
        await self._start(record.id, lambda client: begin_pair(client, start))

    async def _start(self, id: str, work: Callable[[docker.APIClient], Started]) -> None:
        # Registered before it runs: it may end before its start returns.
        made = self._containers[id] = KnownContainer()
        try:
            started = await self._engine.start("start a container", work)
        except BaseException:
            made.start_failed()
            self._containers.pop(id, None)
            raise
        made.doubt = started.doubt
        for event in made.start_returned(started.container, started.sidecar):
            self._apply(id, made, event)
        if started.way is not None:
            # The way that worked is tried first from now on.
            self._ways.sort(key=lambda way: way is not started.way)

    async def list(self) -> set[str]:
        """Adopt running containers; remove stopped ones that no replica or holder accounts for."""
        self._listen()
        # Only these containers are known to have started before the list was made.
        before = {id for id, known in self._containers.items() if known.id}
        holders = self._holders.ready()
        with self._ended.listing():
            listed = await self._call("list containers", containers.owned, self._owner.name)
            listed = self._ended.without(listed)
        alive, holding = containers.alive(listed), containers.holding(listed)
        for id, parts in alive.items():
            if id not in self._containers:
                self._adopt(id, parts)
        self._holders.sync(holding, holders)
        for one in containers.in_order(listed):
            number = containers.holder_number(one)
            if not (containers.replica_id(one) in self._containers or self._holders.knows(number)):
                await self._remove_leftover(one["Id"])
        for id in before - alive.keys():
            await self._report_missed(id)
        # The engine reports an exit shortly before its list shows it.
        known = self._containers
        return {id for id in alive if id in known and not known[id].is_reported}

    def _adopt(self, id: str, parts: Parts) -> None:
        self._containers[id] = KnownContainer()
        self._containers[id].start_returned(parts.main, parts.sidecar)
        self._uids.adopt(id, parts.uid)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = EventListener(
                self._settings.url,
                {"type": "container", "event": ["die", "oom"], "label": self._label},
                self._on_event,
                self._on_connected,
                self.engine_losses.notify,
                self._settings.times,
            )

    async def _remove_leftover(self, container: str) -> None:
        """Remove a container of a killed server, or of a start that the engine's end interrupted.
        If it cannot be removed, the next list retries it; a stopped container takes no memory."""
        try:
            await self._call("remove a container", containers.remove, container)
        except EngineDown:
            raise
        except DriverError as error:
            log.warning("a container is left", container=container, reason=error.message)

    @property
    def _label(self) -> str:
        return f"{OWNER}={self._owner.name}"

    async def _report_missed(self, id: str) -> None:
        """Report a replica that ended while no events were received. If both containers of a pair
        have, the server's end is the one to be explained."""
        known = self._containers.get(id)
        if known is None:
            return
        for container in filter(None, (known.id, known.sidecar)):
            if known.is_reported:
                return
            ended = await self._call("inspect a container", containers.exit_of, container)
            if ended is None:
                continue
            if ended.out_of_memory:
                known.note_shortage(container)
            self._report_exit(id, known, container, ended.code)

    def _on_connected(self) -> None:
        """List the containers after the event stream has connected: earlier events were missed."""
        if not self._is_closed:
            self._tasks.spawn("list", self._list_again())

    async def _list_again(self) -> None:
        try:
            await self.list()
        except DriverError as error:
            log.warning("containers could not be listed", reason=error.message)
        self._holders.refill(0.0)

    def _on_event(self, event: dict[str, Any]) -> None:
        id, news = read_event(event)
        if news.code is not None:
            self._ended.note(news.container)
        known = self._containers.get(id)
        if known is None:
            self._holders.ended(news.container)
        elif not known.id:
            known.keep(news)
        elif known.owns(news.container):
            self._apply(id, known, news)

    def _apply(self, id: str, known: KnownContainer, news: ContainerEvent) -> None:
        if news.code is None:
            known.note_shortage(news.container)
        else:
            self._report_exit(id, known, news.container, news.code)

    def _report_exit(
        self, id: str, known: KnownContainer, container: str, code: int | None
    ) -> None:
        if not known.is_reported:
            known.is_reported = True
            self.exits.notify(id, Exit(known.describe_exit(container, code)))

    async def limit(self, record: ReplicaRecord) -> None:
        """Limit memory and CPU time, and rename the container after its revision: at once if the
        cap exceeds that of a standby, else in the background."""
        known = self._containers.get(record.id)
        if known is not None:
            # It may connect before the engine's start call has returned.
            await known.settled.wait()
        if known is None or known.is_reported:
            raise DriverError(f"cannot limit {record.id}: it does not run")
        if record.memory_mib > STANDBY_CAP_MIB[record.device_kind]:
            await self._limiter.now(known, record)
        else:
            self._limiter.soon(known, record)

    async def save_log(self, id: str, log: Path) -> None:
        """Append the replica's output since the last call, as kept by the engine, to `log`; of a
        pair, the server's and the sidecar's."""
        if known := self._containers.get(id):
            known.log = log
        parts = await self._find(id)
        if found := [one for one in (parts.main, parts.sidecar) if one]:
            await self._spool.fetch(id, log, {one: self._output_of(one) for one in found})

    def _output_of(self, container: str) -> Ask:
        return lambda since_s: self._call("read a log", containers.output, container, since_s)

    async def terminate(self, id: str) -> None:
        """Send TERM to the container's first process, which forwards it; of a pair, to the
        sidecar's, which shuts what is open and exits."""
        parts = await self._find(id)
        if container := parts.sidecar or parts.main:
            await self._call("end a container", containers.terminate, container)

    async def release(self, id: str) -> None:
        """Kill and remove the container; the server of a pair is stopped with grace, and removed
        before its sidecar."""
        if known := self._containers.get(id):
            await known.settled.wait()
        parts = await self._find(id)
        if parts.is_pair:
            await self._pair_end.stop(parts, math.inf if id in self._containers else STRANGER_S)
            await self._save_last_words(id)
        for container in filter(None, (parts.main, parts.sidecar)):
            await self._call("remove a container", containers.remove, container)
            self._ended.note(container)
        self._spool.forget(id)
        self._uids.free(id)
        if known := self._containers.pop(id, None):
            self._report_exit(id, known, known.id, None)

    async def _save_last_words(self, id: str) -> None:
        """Save what a server has written at its stop signal."""
        known = self._containers.get(id)
        if known is not None and known.log is not None:
            with contextlib.suppress(DriverError, OSError):
                await self.save_log(id, known.log)

    async def _find_settled(self, id: str) -> Parts:
        """Return as `_find`; a fast server is ready before its start has returned."""
        if known := self._containers.get(id):
            await known.settled.wait()
        return await self._find(id)

    async def _find(self, id: str) -> Parts:
        """Return the containers of a replica, also if an earlier server left them."""
        if known := self._containers.get(id):
            return Parts(known.id, known.sidecar, is_pair=bool(known.sidecar))
        listed = await self._call("list containers", containers.owned, self._owner.name)
        return containers.parts_of(listed).get(id, Parts())

    async def close(self) -> None:
        """Remove the holders and stop listening; replicas continue to run. Ends in bounded time
        even if the engine hangs; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._holders.close()
        if self._listener is not None:
            await asyncio.to_thread(self._listener.close)
        await self._tasks.close()
        with contextlib.suppress(DriverError, TimeoutError):
            async with asyncio.timeout(self._settings.times.close_s):
                await self._call("remove holders", containers.remove_holders, self._owner.name)
        await asyncio.to_thread(self._engine.close)

    async def _call(self, doing: str, work: Callable[..., T], *arguments: Any) -> T:
        return await self._engine.call(doing, lambda client: work(client, *arguments))


async def _check(engine: Engine, kind: str, image: str) -> None:
    check_image(image, kind, await engine.call(f"use image {image}", inspection(image)))


class ContainerLimiter:
    """Sets the memory and CPU limits of containers from the records of their replicas."""

    def __init__(self, engine: Engine, owner: Owner, tasks: Tasks, times: Times) -> None:
        self._engine = engine
        self._owner = owner
        self._tasks = tasks
        self._times = times

    async def now(self, known: KnownContainer, record: ReplicaRecord) -> None:
        """Set the limits. Raises DriverError."""
        name, limits = spec.container_name(record, self._owner), spec.limits(record)
        await self._engine.call(
            "limit a container", lambda c: containers.limit(c, known.id, limits, name)
        )

    def soon(self, known: KnownContainer, record: ReplicaRecord) -> None:
        """Set the limits in the background, after the first answer, because this stops all
        processes of a container for milliseconds. A container that already exceeds its limit, or
        that cannot be limited, is killed."""
        self._tasks.spawn(f"limit {record.id}", self._soon(known, record))

    async def _soon(self, known: KnownContainer, record: ReplicaRecord) -> None:
        await asyncio.sleep(self._times.limit_after_s)
        is_refused = False
        while not known.is_reported:
            try:
                if is_refused:
                    await self._engine.call(
                        "end a container", lambda c: containers.kill(c, known.id)
                    )
                else:
                    await self.now(known, record)
            except EngineDown:
                await asyncio.sleep(self._times.limit_retry_s)
            except DriverError as error:
                if is_refused or known.is_reported:
                    return  # it has ended, or is being removed
                log.warning("a replica cannot be limited", replica=record.id, reason=error.message)
                known.out_of_memory |= is_too_large(error)
                is_refused = True
            else:
                return
