"""Gateway processes of a server: started, restarted, checked, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import structlog

from admin.workers.broadcast import WorkerMessages
from admin.workers.channel import CLOSED
from admin.workers.messages import (
    AskLoad,
    AskStatistics,
    AskUnload,
    Beat,
    Failed,
    Finished,
    LeaveLoad,
    Reached,
    Ready,
    Reckoned,
    Stop,
    TellConnected,
    Up,
    Wants,
    Welcome,
    Woken,
    decode_up,
    encode,
)
from admin.workers.process import Restarts, WorkerProcess
from registry.errors import FnError
from registry.tasks import Tasks

log = structlog.get_logger()

READY_S: Final = 60.0
"""Max seconds of a worker's start."""
SILENT_S: Final = 15.0
"""A worker without messages for this many seconds hangs: it sends a beat each second."""
CHECK_S: Final = 1.0
GRACE_S: Final = 5.0
"""Seconds to wait for a worker's end beyond the worker's own limit."""
CLOSE_S: Final = 65.0
"""Max seconds for a worker's last connections; aiohttp's limit is 60."""

Launch = Callable[
    [Callable[[bytes], None], Callable[[str], None]], Coroutine[Any, Any, WorkerProcess]
]
"""Starts a process. Arguments: the receivers of its messages and of its channel's end."""


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """One run of a worker's process. `heard_s`: monotonic time of its last message."""

    began_s: float
    heard_s: float
    process: WorkerProcess | None = None
    is_ready: bool = False
    is_finished: bool = False
    reason: str = ""
    name: str = field(default="", init=False)


class WorkerPool:
    """Pool of `count` workers. A worker that dies is restarted after a pause, which grows while it
    keeps dying; the others keep running. `deaths` counts unexpected exits."""

    def __init__(
        self,
        count: int,
        welcome: Callable[[str], Welcome],
        messages: WorkerMessages,
        clock: Callable[[], float] = monotonic,
        launch: Launch = WorkerProcess.start,
    ) -> None:
        """`welcome(name)` returns the configuration of the worker with this name."""
        self._count = count
        self._welcome = welcome
        self._messages = messages
        self._clock = clock
        self._launch = launch
        self._slots: set[WorkerSlot] = set()
        self._tasks = Tasks("workers")
        self._is_started = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._failure = ""
        self.deaths = 0

    @property
    def is_stopping(self) -> bool:
        """True once no more calls are accepted."""
        return self._stopping.is_set()

    def reasons(self) -> list[str]:
        """Return a reason for /readyz unless all workers accept calls."""
        if self.running == self._count:
            return []
        return [f"workers: {self.running} of {self._count} run"]

    @property
    def running(self) -> int:
        """Number of workers that accept calls."""
        return sum(slot.is_ready for slot in self._slots)

    async def start(self) -> None:
        """Start all workers; return when all accept calls. Raises FnError if one cannot."""
        for number in range(self._count):
            self._tasks.spawn(f"worker {number}", self._supervise(number))
        await self._until(lambda: bool(self._failure) or not self.reasons(), READY_S + GRACE_S)
        if self._failure or self.reasons():
            raise FnError(f"a worker cannot start: {self._failure or 'timeout'}")
        self._is_started = True

    async def stop(self, shutdown_s: float, stop_waiting: Callable[[], Awaitable[None]]) -> None:
        """Stop all workers after they finished their accepted calls, for at most `shutdown_s`.

        `stop_waiting` is called when all calls are answered; it must answer all other waiting
        requests.
        """
        self._stopping.set()
        for slot in self._slots:
            if slot.is_ready and slot.process is not None:
                slot.process.channel.send(encode(Stop()))
            else:
                _kill(slot)
        await self._until(lambda: all(m.is_finished for m in self._slots), shutdown_s + GRACE_S)
        await stop_waiting()
        await self._until(lambda: not self._slots, CLOSE_S)
        for slot in self._slots:
            log.error("a worker does not end and is killed", worker=slot.name)
            _kill(slot)
        await self._until(lambda: not self._slots, GRACE_S)
        await self._tasks.close()

    async def _supervise(self, number: int) -> None:
        """Run one worker's process, and restart it whenever it ends, until the server stops."""
        restarts = Restarts()
        while not self._stopping.is_set():
            slot = WorkerSlot(self._clock(), self._clock())
            try:
                how = await self._run_once(slot)
            except OSError as error:
                how = f"could not be started: {error}"
            if self._stopping.is_set():
                return
            reason = slot.reason or how
            if not self._is_started:
                self._failure = reason
                self._changed.set()
                return
            self.deaths += 1
            pause_s = restarts.pause_s(self._clock() - slot.began_s)
            log.error("a worker ended", number=number, worker=slot.name, reason=reason)
            await self._pause(pause_s)

    async def _run_once(self, slot: WorkerSlot) -> str:
        """Run one process to its end; return how it ended. Raises OSError if it cannot start."""
        self._slots.add(slot)
        try:
            process = await self._launch(
                lambda data: self._on_message(slot, data), lambda reason: _lost(slot, reason)
            )
            slot.process, slot.name = process, process.name
            if self._stopping.is_set():
                process.kill()
            process.channel.send(encode(self._welcome(process.name)))
            self._messages.on_started(process)
            try:
                return await process.wait()
            finally:
                self._messages.on_ended(process)
        finally:
            self._slots.discard(slot)
            self._changed.set()

    def _on_message(self, slot: WorkerSlot, data: bytes) -> None:
        """Handle a message; any message shows that its worker is alive."""
        message = decode_up(data)
        slot.heard_s = self._clock()
        if isinstance(message, Ready):
            slot.is_ready = True
            log.info("a worker serves", worker=slot.name)
        elif isinstance(message, Failed):
            slot.reason = message.reason
        elif isinstance(message, Finished):
            slot.is_finished = True
        else:
            self._forward(slot, message)
        self._changed.set()

    def _forward(self, slot: WorkerSlot, message: Up) -> None:
        if isinstance(message, Wants):
            self._messages.on_demand(slot.name, message.demand)
        elif isinstance(message, Reached):
            self._messages.on_reached(slot.name, message.number)
        elif isinstance(message, Reckoned):
            self._messages.on_reckoned(slot.name, message)
        elif isinstance(message, TellConnected):
            self._messages.on_connected(slot.name, message)
        elif isinstance(message, AskStatistics):
            self._messages.on_statistics(slot.name, message)
        elif isinstance(message, AskLoad | LeaveLoad | AskUnload):
            self._messages.on_model_request(slot.name, message)
        elif isinstance(message, Woken):
            self._messages.on_cold_start(message)
        elif isinstance(message, Beat):
            self._messages.on_beat(slot.name, message)

    def check(self) -> None:
        """Kill every worker that has been silent for too long. Call it every CHECK_S."""
        now = self._clock()
        for slot in self._slots:
            limit_s = SILENT_S if slot.is_ready else READY_S
            if now - slot.heard_s > limit_s:
                slot.reason = f"sent no message for {now - slot.heard_s:.0f} s"
                _kill(slot)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Return when `condition` holds, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return


def _lost(slot: WorkerSlot, reason: str) -> None:
    """Kill a worker whose channel has ended: it can no longer be reached."""
    if not slot.is_finished:
        slot.reason = slot.reason or (reason if reason != CLOSED else "")
        _kill(slot)


def _kill(slot: WorkerSlot) -> None:
    if slot.process is not None:
        slot.process.kill()
