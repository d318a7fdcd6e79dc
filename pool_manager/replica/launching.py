"""Starts and releases single replicas: folders, sockets, driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from pool_manager.core import events
from pool_manager.core.commands import Assign, Bind, Launch
from pool_manager.driver import Driver
from pool_manager.gpus.tenancy import Tenancy
from pool_manager.ports import Binding, Bundles
from pool_manager.replica import records, statements
from pool_manager.replica.control import Control, Feed
from pool_manager.replica.folders import STANDBY_LOGS, Folders, tail_lines
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown, FnError
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()

LOG_LINES = 20
OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Unable to allocate")
"""How ONNX Runtime, Python and NumPy say it."""
EXIT_NEWS_S = 2.0
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
        self.folders = Folders(settings, driver.replica_user)
        self._controls: dict[str, Control] = {}
        self._logs: dict[str, Path] = {}
        self._records: dict[str, ReplicaRecord] = {}
        self._exits: dict[str, asyncio.Future[str]] = {}
        self._work: dict[str, set[asyncio.Task[None]]] = {}
        self._releases: set[str] = set()
        self._starts = asyncio.Semaphore(settings.starts_at_once)
        self.tenancy = Tenancy(driver)
        driver.on_exit = self._exited

    def launch(self, command: Launch, binding: Binding | None, device_kind: str) -> None:
        """Start a replica, or a standby without `binding`, in the background; else Lost follows."""
        self._begin(f"launch {command.id}", command.id, self._launch(command, binding, device_kind))

    def assign(self, command: Assign, binding: Binding, device_kind: str) -> None:
        """Give a greeted standby its model in the background; Lost follows if that fails."""
        work = self._assign(command, binding, device_kind, self._clock())
        self._begin(f"assign {command.id}", command.id, work)

    def bind(self, command: Bind, binding: Binding) -> None:
        """Tell a replica that was launched for its model to load it now."""
        record, control = self._records.get(command.id), self._controls.get(command.id)
        if record is not None and control is not None:
            control.bind(records.bind_request(record, binding.spec, self._clock()))

    def _begin(self, name: str, id: str, work: Coroutine[None, None, None]) -> None:
        """Do slow work on a replica; its release waits for the end of it."""
        task = self._tasks.spawn(name, work)
        self._work.setdefault(id, set()).add(task)
        task.add_done_callback(lambda done: self._ended(id, done))

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        self._work[id].discard(task)
        if not self._work[id]:
            del self._work[id]

    async def _launch(self, command: Launch, binding: Binding | None, device_kind: str) -> None:
        id = command.id
        async with self._starts:
            with self._lost_on_error(id, "a replica could not be started"):
                self.tenancy.move_in(id, command.device)
                model_dir = self.folders.model_dir(id)
                if binding is None:
                    self.folders.empty_models(id)
                else:
                    await self._bundles.materialise(binding.bundle, model_dir)
                model_path = self._driver.model_path(model_dir)
                record = records.unbound(
                    command, device_kind, model_path, self._settings, self._clock()
                )
                if binding is not None:
                    record = self._bound(record, command, binding, device_kind)
                self.folders.record(record)
                log_file = self.folders.log_file(binding.name if binding else STANDBY_LOGS, id)
                self._open_control(record, log_file, data_listener=True)
                await self._driver.start(record, self.folders.run_dir(id), self._logs[id])

    async def _assign(
        self, command: Assign, binding: Binding, device_kind: str, assigned_s: float
    ) -> None:
        """Outside the bound on starts: it costs next to nothing, and somebody waits for it."""
        id = command.id
        if (control := self._controls.get(id)) and not control.is_answering:
            # Whoever waits need not wait until it is given up, nor is their model to blame.
            self._feed(events.Lost(id, "the standby hangs", is_its_fault=False))
            return
        with self._lost_on_error(id, "a standby could not be given its model"):
            standby = self._standby(id)
            self.tenancy.move_in(id, command.device)
            await self._bundles.materialise(binding.bundle, self.folders.model_dir(id))
            record = self._bound(standby, command, binding, device_kind)
            # Recorded before the message: a manager that comes after must know what it may find.
            self.folders.rewrite(record)
            self._records[id] = record
            self._logs[id] = self.folders.claim_log(binding.name, id)
            await self._driver.limit(record)
            if control := self._controls.get(id):  # else it was released meanwhile
                control.bind(records.bind_request(record, binding.spec, assigned_s))
            await asyncio.to_thread(self.folders.trim_logs, binding.name)

    def _standby(self, id: str) -> ReplicaRecord:
        """The record of a replica that can be given a model. Raises DriverError on any other."""
        record, control = self._records.get(id), self._controls.get(id)
        if record is None or control is None or not control.is_greeted:
            raise DriverError(f"expected a standby that has greeted, got {id}, which has not")
        if record.bound:
            raise DriverError(f"expected a standby, got {id}, which is bound to {record.bound}")
        return record

    @contextlib.contextmanager
    def _lost_on_error(self, id: str, what: str) -> Iterator[None]:
        try:
            yield
        except EngineDown as error:
            # Before the end of the replica, so that nothing is started in its place.
            self._feed(events.EngineLost(str(error)))
            self._feed(events.Lost(id, str(error), is_its_fault=False))
        except (FnError, OSError) as error:
            log.warning(what, replica=id, reason=str(error))
            self._feed(events.Lost(id, str(error)))

    def _bound(
        self, record: ReplicaRecord, command: Launch | Assign, binding: Binding, device_kind: str
    ) -> ReplicaRecord:
        cap = records.cap_mib(binding, self._settings, device_kind)
        return records.bound(record, command, binding, device_kind, cap)

    def adopt(self, record: ReplicaRecord, name: str) -> None:
        """Listen for the greeting of a replica that an earlier manager started.

        `name` is of its function, "" for a standby. Of one that was just being given a model
        nothing is kept: its record does not say so yet.
        """
        id = record.id
        if not record.bound:
            self.folders.empty_models(id)
        log_file = self.folders.claim_log(name if record.bound else STANDBY_LOGS, id)
        self.tenancy.stay(id, record.device)
        self._open_control(record, log_file, data_listener=False)
        if record.bound:
            # The earlier manager may have ended before its limits were set.
            self._begin(f"limit {id}", id, self._limit(record))

    async def _limit(self, record: ReplicaRecord) -> None:
        with self._lost_on_error(record.id, "a replica could not be limited"):
            await self._driver.limit(record)

    def _open_control(self, record: ReplicaRecord, log_file: Path, *, data_listener: bool) -> None:
        id = record.id
        self._logs[id] = log_file
        self._records[id] = record
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
        """End what is left of a replica in the background; Released or NotReleased follows. It may
        be asked for again before that, and is then still done once."""
        self._close_control(id)
        if id not in self._releases:
            self._releases.add(id)
            self._tasks.spawn(f"release {id}", self._release(id))

    def _close_control(self, id: str) -> None:
        control = self._controls.pop(id, None)
        if control is not None:
            control.close()

    async def _release(self, id: str) -> None:
        try:
            await self._end(id)
            self._feed(events.Released(id))
        except Exception as error:
            # Untold, nobody would ever try it again.
            if isinstance(error, EngineDown):
                self._feed(events.EngineLost(str(error)))
            reason, is_odd = str(error) or repr(error), not isinstance(error, DriverError)
            log.error("a replica cannot be released", replica=id, reason=reason, exc_info=is_odd)
            self._feed(events.NotReleased(id, reason))
        finally:
            self._releases.discard(id)

    async def _end(self, id: str) -> None:
        # A start that goes on would bring to life what nobody looks after any more, and files that
        # are still being linked would outlive it.
        if work := self._work.get(id):
            await asyncio.wait(work)
            self._close_control(id)
        await self._save_log(id)
        await self.tenancy.release(id)
        await asyncio.to_thread(self.folders.remove, id)
        for known in (self._logs, self._records, self._exits):
            known.pop(id, None)

    async def logs(self, function: str) -> list[tuple[str, bytes]]:
        """Ids and kept output of a function's replicas, gone ones too, oldest first."""
        for id in [id for id, path in self._logs.items() if path.parent.name == function]:
            await self._save_log(id)
        return await asyncio.to_thread(self.folders.outputs, function)

    async def _save_log(self, id: str) -> None:
        """A log that cannot be had is no reason to stop."""
        if path := self._logs.get(id):
            with contextlib.suppress(DriverError, OSError):
                await self._driver.save_log(id, path)

    def bound_logs(self) -> None:
        """Keep every living replica's output within its limit."""
        for path in self._logs.values():
            self.folders.bound_log(path)

    def _exited(self, id: str, how: str) -> None:
        news = self._exits.get(id)
        if news is not None and not news.done():
            news.set_result(how)
            hint = "" if how.endswith("code 0") else records.cap_hint(self._records.get(id))
            self._tasks.spawn(f"end of {id}", self._lost(events.Lost(id, how), hint))

    def _heard(self, event: events.Event) -> None:
        """What the replica itself says."""
        if isinstance(event, events.Loaded):
            event = records.within_cap(event, self._records.get(event.id), self._settings)
        if isinstance(event, events.Loaded) and self.tenancy.concerns(event.id):
            self._tasks.spawn(f"measure {event.id}", self.tenancy.measure(event, self._feed))
        elif isinstance(event, events.Lost):
            is_short = any(word in event.reason for word in OUT_OF_MEMORY)
            hint = records.cap_hint(self._records.get(event.id)) if is_short else ""
            self._tasks.spawn(f"end of {event.id}", self._lost(event, hint))
        else:
            self._feed(event)

    async def _lost(self, event: events.Lost, hint: str = "") -> None:
        """It is told with its last lines; `hint` is for an end that it has said nothing about."""
        await self._save_log(event.id)
        tail = tail_lines(path, LOG_LINES) if (path := self._logs.get(event.id)) else ()
        words = statements.last_words(tail)
        reason = event.reason + (f": {words}" if words else hint)
        self._feed(replace(event, reason=reason, log_tail=tail))

    def _link_lost(self, id: str, reason: str) -> None:
        self._tasks.spawn(f"end of {id}", self._explain(id, reason))

    async def _explain(self, id: str, reason: str) -> None:
        """The link ends a moment before the process does; how that ended says more."""
        news = self._exits.get(id)
        if news is not None and not reason.startswith("did not answer"):
            await asyncio.wait([news], timeout=EXIT_NEWS_S)
            if news.done():
                return  # and it is being told
        await self._lost(events.Lost(id, f"control link lost: {reason}"))
