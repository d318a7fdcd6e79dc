"""Starts and releases single replicas: folders, sockets, driver."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from pool_manager.control import Control, Feed
from pool_manager.core import events
from pool_manager.core.commands import Launch
from pool_manager.driver import Driver
from pool_manager.folders import Folders, tail_lines
from pool_manager.ports import Binding, Bundles
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, FnError
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()

LOG_LINES = 20
OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Unable to allocate")
"""How ONNX Runtime, Python and NumPy say it."""
EXIT_NEWS_S = 0.2
"""How long the driver may take to say how a process ended whose link has already ended."""


class Launcher:
    """Does for one replica at a time what the machine commands, and feeds back what happened."""

    def __init__(
        self,
        settings: PoolSettings,
        driver: Driver,
        bundles: Bundles,
        feed: Feed,
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._bundles = bundles
        self._feed = feed
        self._tasks = tasks
        self._clock = clock
        self.folders = Folders(settings)
        self._controls: dict[str, Control] = {}
        self._logs: dict[str, Path] = {}
        self._caps: dict[str, int] = {}
        self._exits: dict[str, asyncio.Future[str]] = {}
        self._launches: dict[str, asyncio.Task[None]] = {}
        self._starts = asyncio.Semaphore(settings.starts_at_once)
        driver.on_exit = self._exited

    def launch(self, command: Launch, binding: Binding, device_kind: str) -> None:
        """Start a replica in the background; Lost follows if that fails."""
        launch = self._launch(command, binding, device_kind)
        task = self._tasks.spawn(f"launch {command.id}", launch)
        self._launches[command.id] = task
        task.add_done_callback(lambda _: self._launches.pop(command.id, None))

    async def _launch(self, command: Launch, binding: Binding, device_kind: str) -> None:
        id = command.id
        async with self._starts:
            try:
                await self._bundles.materialise(binding.bundle, self.folders.model_dir(id))
                record = self._record(command, binding, device_kind)
                self.folders.record(record)
                self._open_control(record, binding.name, data_listener=True)
                await self._driver.start(record, self.folders.run_dir(id), self._logs[id])
            except (FnError, OSError) as error:
                log.warning("a replica could not be started", replica=id, reason=str(error))
                self._feed(events.Lost(id, str(error)))

    def _record(self, command: Launch, binding: Binding, device_kind: str) -> ReplicaRecord:
        return ReplicaRecord(
            id=command.id,
            token=secrets.token_hex(32),
            role=command.role,
            namespace=binding.namespace,
            bound=command.pool,
            model_dir=str(self.folders.model_dir(command.id)),
            device=command.device,
            device_kind=device_kind,
            engine="onnx" if binding.spec.model else "python",
            threads=self._settings.threads_per_slot,
            orphan_s=self._settings.orphan_s,
            memory_mib=binding.memory_mib or self._settings.memory_mib,
            launched_s=self._clock(),
            phases=command.phases,
        )

    def adopt(self, record: ReplicaRecord, name: str) -> None:
        """Listen for the greeting of a replica that an earlier manager started."""
        self._open_control(record, name, data_listener=False)

    def _open_control(self, record: ReplicaRecord, name: str, *, data_listener: bool) -> None:
        id = record.id
        self._logs[id] = self.folders.log_file(name, id)
        self._caps[id] = record.memory_mib
        self._exits[id] = asyncio.get_running_loop().create_future()
        listener = self.folders.listen_control(id)
        control = Control(
            id,
            record.token,
            listener,
            self.folders.listen_data(id) if data_listener else None,
            self._heard,
            lambda reason: self._link_lost(id, reason),
        )
        self._controls[id] = control
        control.open(self._tasks, self._settings.ping_s)

    def control(self, id: str) -> Control | None:
        """The control link of a replica, if it is still held."""
        return self._controls.get(id)

    def terminate(self, id: str) -> None:
        """TERM, in the background."""
        self._tasks.spawn(f"terminate {id}", self._driver.terminate(id))

    def release(self, id: str) -> None:
        """End what is left of a replica in the background; Released or NotReleased follows."""
        self._close_control(id)
        self._tasks.spawn(f"release {id}", self._release(id))

    def _close_control(self, id: str) -> None:
        control = self._controls.pop(id, None)
        if control is not None:
            control.close()

    async def _release(self, id: str) -> None:
        # A start that goes on would bring to life what nobody looks after any more.
        if launch := self._launches.get(id):
            await asyncio.wait([launch])
            self._close_control(id)
        try:
            await self._driver.release(id)
        except DriverError as error:
            log.error("a replica cannot be released", replica=id, reason=str(error))
            self._feed(events.NotReleased(id, str(error)))
            return
        await asyncio.to_thread(self.folders.remove, id)
        self._logs.pop(id, None)
        self._caps.pop(id, None)
        self._exits.pop(id, None)
        self._feed(events.Released(id))

    def bound_logs(self) -> None:
        """Keep every living replica's output within its limit."""
        for path in self._logs.values():
            self.folders.bound_log(path)

    def _exited(self, id: str, how: str) -> None:
        news = self._exits.get(id)
        if news is not None and not news.done():
            news.set_result(how)
            hint = "" if how.endswith("code 0") else self._under_cap(id)
            self._feed(events.Lost(id, how + hint, self._tail(id)))

    def _heard(self, event: events.Event) -> None:
        """What the replica itself says; a refused load is explained by its last lines, too."""
        if isinstance(event, events.Lost):
            is_short = any(word in event.reason for word in OUT_OF_MEMORY)
            hint = self._under_cap(event.id) if is_short else ""
            event = replace(event, reason=event.reason + hint, log_tail=self._tail(event.id))
        self._feed(event)

    def _under_cap(self, id: str) -> str:
        """What else to think of when a replica that has a memory cap ends."""
        cap = self._caps.get(id)
        return f" (its memory cap is {cap} MiB)" if cap else ""

    def _link_lost(self, id: str, reason: str) -> None:
        self._tasks.spawn(f"end of {id}", self._explain(id, reason))

    async def _explain(self, id: str, reason: str) -> None:
        """The link ends a moment before the process does; how that ended says more."""
        news = self._exits.get(id)
        if news is not None and not reason.startswith("did not answer"):
            await asyncio.wait([news], timeout=EXIT_NEWS_S)
        self._feed(events.Lost(id, f"control link lost: {reason}", self._tail(id)))

    def _tail(self, id: str) -> tuple[str, ...]:
        path = self._logs.get(id)
        return tail_lines(path, LOG_LINES) if path else ()
