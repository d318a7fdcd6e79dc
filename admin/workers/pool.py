"""Gateways of a server: started, connected, restarted, checked, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

import structlog

from admin.workers.hub import Hub
from admin.workers.messages import Activity, Failed, Finished, Ready, Stop, Up, Wants, Welcome
from admin.workers.metrics import MergedMetrics
from admin.workers.process import SOUND_S, Restarts
from admin.workers.reports import Reports
from admin.workers.requests import Handlers
from admin.workers.session import Session
from admin.workers.shared_counters import Counters
from admin.workers.statistics import RevisionPage
from admin.workers.stream import CLOSED, Stream
from registry.errors import FnError
from registry.tasks import Tasks

log = structlog.get_logger()

READY_S: Final = 60.0
"""Max seconds of a worker's start."""
GRACE_S: Final = 5.0
"""Seconds to wait for a worker's end beyond the worker's own limit."""
CLOSE_S: Final = 65.0
"""Max seconds for a worker's last connections; aiohttp's limit is 60."""

BREAKS_MAX: Final = 3
"""Max streams of one gateway that break one after the other, none of which lasted SOUND_S."""


class GatewayProcess(Protocol):
    """A running gateway: a process of its own, or a part of the server's."""

    @property
    def counters(self) -> Counters:
        """Its counters."""

    @property
    def revisions(self) -> Counters:
        """Its numbers by revision."""

    @property
    def name(self) -> str:
        """Name in messages, unique within the server."""

    def connect(self) -> Stream:
        """Return a new stream to the gateway, to be opened; it replaces the one before. Raises
        ConnectionError if the gateway has ended, OSError if no stream can be made."""

    def kill(self) -> None:
        """End it at once."""

    async def wait(self) -> str:
        """Wait for its end, and that of its stream; return how it ended, in words."""


Launch = Callable[[], Coroutine[Any, Any, GatewayProcess]]
"""Starts a gateway. Raises OSError."""


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """One run of a gateway."""

    began_s: float
    process: GatewayProcess | None = None
    session: Session | None = None
    """That of its stream, None while it has none."""
    connected_s: float = 0.0
    """When it got that one."""
    breaks: int = 0
    """Streams that broke one after the other."""
    counted: int = 0
    """Number of its last Activity that was counted."""
    is_ready: bool = False
    is_finished: bool = False
    reason: str = ""
    """Why it ends; "" while it is not known that it does."""
    errno: int = 0
    """Number of `reason` in errno(3), 0 for none."""
    name: str = field(default="", init=False)


class WorkerPool:
    """Pool of `count` gateways. One that dies is restarted after a pause, which grows while it
    keeps dying; the others keep running. `deaths` counts unexpected exits."""

    def __init__(
        self,
        count: int,
        hub: Hub,
        reports: Reports,
        page: MergedMetrics,
        numbers: RevisionPage,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._count = count
        self._hub = hub
        self._reports = reports
        self._page = page
        self._numbers = numbers
        self._clock = clock
        self._slots: set[WorkerSlot] = set()
        self._tasks = Tasks("workers")
        self._is_started = False
        self._changed = asyncio.Event()
        self._failure: WorkerSlot | None = None
        self.is_stopping = False
        """True once no more calls are accepted."""
        self.deaths = 0
        self.port = 0
        """The port on which calls are accepted."""

    def reasons(self) -> list[str]:
        """Return a reason for /readyz unless all workers accept calls."""
        if self.running == self._count:
            return []
        return [f"workers: {self.running} of {self._count} run"]

    @property
    def running(self) -> int:
        """Number of workers that accept calls."""
        return sum(slot.is_ready for slot in self._slots)

    async def start(self, launch: Launch, welcome: Callable[[str], Welcome]) -> None:
        """Start all gateways; return when all accept calls.

        `launch` starts one; `welcome(name)` returns the configuration of the one with this name.

        Raises OSError if one cannot by an error of the system, as of a port that is taken; FnError
        with any other reason.
        """
        self._welcome = welcome
        for number in range(self._count):
            self._tasks.spawn(f"worker {number}", self._supervise(number, launch))
        await self._until(lambda: bool(self._failure) or not self.reasons(), READY_S + GRACE_S)
        failed = self._failure
        if failed is not None and failed.errno:
            raise OSError(failed.errno, failed.reason)
        if failed is not None or self.reasons():
            raise FnError(f"a gateway cannot start: {failed.reason if failed else 'timeout'}")
        self._is_started = True

    async def stop(self, shutdown_s: float, stop_waiting: Callable[[], Awaitable[None]]) -> None:
        """Stop all workers after they finished their accepted calls, for at most `shutdown_s`.

        `stop_waiting` is called when all calls are answered; it must answer all other waiting
        requests.
        """
        self.is_stopping = True
        self._changed.set()
        for slot in self._slots:
            if not slot.is_ready:
                _kill(slot)
            elif slot.session is not None and slot.session.is_agreed:
                slot.session.send(Stop())
        await self._until(lambda: all(m.is_finished for m in self._slots), shutdown_s + GRACE_S)
        await stop_waiting()
        await self._until(lambda: not self._slots, CLOSE_S)
        for slot in self._slots:
            log.error("a worker does not end and is killed", worker=slot.name)
            _kill(slot)
        await self._until(lambda: not self._slots, GRACE_S)
        await self._tasks.close()

    async def _supervise(self, number: int, launch: Launch) -> None:
        """Run one gateway, and restart it whenever it ends, until the server stops."""
        restarts = Restarts()
        while not self.is_stopping:
            slot = WorkerSlot(self._clock())
            try:
                how = await self._run_once(slot, launch)
            except OSError as error:
                how = f"could not be started: {error}"
            if self.is_stopping:
                return
            slot.reason = slot.reason or how
            if not self._is_started:
                self._failure = slot
                self._changed.set()
                return
            self.deaths += 1
            pause_s = restarts.pause_s(self._clock() - slot.began_s)
            log.error("a worker ended", number=number, worker=slot.name, reason=slot.reason)
            await self._until(lambda: self.is_stopping, pause_s)

    async def _run_once(self, slot: WorkerSlot, launch: Launch) -> str:
        """Run one gateway to its end; return how it ended. Raises OSError if it cannot start."""
        self._slots.add(slot)
        try:
            process = await launch()
            slot.process, slot.name = process, process.name
            if self.is_stopping:
                process.kill()
            self._page.add(process.name, process.counters)
            self._numbers.add(process.name, process.revisions)
            try:
                await self._connect(slot)
                return await process.wait()
            finally:
                self._page.remove(process.name)
                self._numbers.remove(process.name)
                self._hub.remove(process.name, comes_back=False)
                self._reports.on_gone(process.name)
        finally:
            self._slots.discard(slot)
            self._changed.set()

    async def _connect(self, slot: WorkerSlot) -> None:
        """Give a gateway a stream. One that has closed its door ends by itself. One that cannot get
        a stream, as the server has no descriptors left, is killed: it would miss every change."""
        assert slot.process is not None
        try:
            stream = slot.process.connect()
        except ConnectionError:
            return
        except OSError as error:
            slot.reason = slot.reason or f"cannot get a stream: {error}"
            _kill(slot)
            return
        own: Handlers = {Activity: partial(self._on_activity, slot)}
        slot.session, slot.connected_s = self._hub.session(stream, own), self._clock()
        await slot.session.open(
            lambda: self._on_agreed(slot),
            lambda message: self._on_message(slot, message),
            lambda reason: self._on_lost(slot, reason),
        )

    def _on_agreed(self, slot: WorkerSlot) -> None:
        """Send a gateway everything; call this for each of its streams."""
        assert slot.session is not None
        self._hub.add(slot.name, slot.session, self._welcome(slot.name))
        if self.is_stopping:
            slot.session.send(Stop())

    def _on_message(self, slot: WorkerSlot, message: Up) -> None:
        """Handle a message. Raises ValueError or msgspec.DecodeError if it breaks the protocol."""
        if isinstance(message, Ready):
            if not slot.is_ready:
                log.info("a worker serves", worker=slot.name)
            slot.is_ready, self.port = True, message.port
        elif isinstance(message, Failed):
            slot.reason, slot.errno = message.reason, message.errno
        elif isinstance(message, Finished):
            slot.is_finished = True
        elif isinstance(message, Wants):
            self._reports.on_demand(slot.name, message.demand)
        self._changed.set()

    def _on_activity(self, slot: WorkerSlot, activity: Activity) -> None:
        """Count what a gateway reports, unless it was counted and the answer was lost."""
        if activity.number > slot.counted:
            slot.counted = activity.number
            self._reports.on_activity(slot.name, activity)

    def _on_lost(self, slot: WorkerSlot, reason: str) -> None:
        """End the demand of a gateway whose stream broke, and give it another one, unless it ends:
        it has finished, has failed, speaks another version or is being killed. One that hangs is
        killed."""
        session, slot.session = slot.session, None
        assert session is not None
        slot.reason = slot.reason or session.parted
        # Its process may have ended while it got this stream: nobody else would remove it then.
        ends = slot.is_finished or bool(slot.reason) or slot not in self._slots
        lasted_s = self._clock() - slot.connected_s
        slot.breaks = 1 if lasted_s >= SOUND_S else slot.breaks + 1
        comes_back = not (ends or session.is_silent) and slot.breaks <= BREAKS_MAX
        self._hub.remove(slot.name, comes_back=comes_back)
        self._reports.on_gone(slot.name)
        if comes_back:
            log.info("a worker lost its stream", worker=slot.name, reason=reason)
            self._tasks.spawn("connect", self._connect(slot))
        elif not ends:
            slot.reason = reason if reason != CLOSED else ""
            _kill(slot)

    def check(self) -> None:
        """Send every gateway a beat, and kill those that hang. Call it every BEAT_S."""
        for slot in list(self._slots):
            if slot.session is not None:
                slot.session.beat()
            if not slot.is_ready and self._clock() - slot.began_s > READY_S:
                slot.reason = f"does not accept calls after {READY_S:.0f} s"
                _kill(slot)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Return when `condition` holds, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return


def _kill(slot: WorkerSlot) -> None:
    if slot.process is not None:
        slot.process.kill()
