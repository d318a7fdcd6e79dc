"""The path of what happens to replicas: from drivers and control links to the manager.

1. Drivers notify of exits and engine losses; control links of the replica's events, of PONGs and
   of their own end.
2. `EventRelay` adds what only the shell knows, and reports the end of each replica once.
3. `Wiring` has the receivers of the result: events, and milliseconds of runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from pool_manager.core import events
from pool_manager.core.start_queue import Rank, StartPriority
from pool_manager.driver import Driver
from pool_manager.gpus.occupancy import GpuOccupancy
from pool_manager.replicas import records
from pool_manager.replicas.control import last_words
from pool_manager.replicas.output import ReplicaOutput
from pool_manager.settings import PoolSettings
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Unable to allocate")
"""How ONNX Runtime, Python and NumPy say it."""
EXIT_S = 2.0
"""How long after the end of a control link the driver's notification of the exit is waited for."""

Emit = Callable[[events.Event], None]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the owner of a launcher connects it to.

    `emit` gets every event, `on_pong(id, busy_ms)` each PONG; `turn(id)` says when it is the turn
    of a replica's start; `occupancy` is of the owner's GPUs.
    """

    emit: Emit
    occupancy: GpuOccupancy
    on_pong: Callable[[str, int], None] = lambda _id, _busy_ms: None
    turn: Callable[[str], StartPriority] = lambda _id: StartPriority(Rank.WAITER, 0.0)


class EventRelay:
    """Knows the records of the replicas there are; `on_started(id)` is called when a start is over,
    before the event that says so is passed on."""

    def __init__(
        self,
        driver: Driver,
        settings: PoolSettings,
        output: ReplicaOutput,
        wiring: Wiring,
        on_started: Callable[[str], None],
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._output = output
        self._occupancy, self._emit = wiring.occupancy, wiring.emit
        self._pong = wiring.on_pong
        self._on_started = on_started
        self._tasks = tasks
        self.records: dict[str, ReplicaRecord] = {}
        self._exits: dict[str, asyncio.Future[str]] = {}
        driver.exits.subscribe(self._on_exit)
        driver.engine_losses.subscribe(lambda reason: self._emit(events.EngineLost(reason)))

    def begin(self, record: ReplicaRecord) -> None:
        """A replica is launched or adopted."""
        self.records[record.id] = record
        self._exits[record.id] = asyncio.get_running_loop().create_future()

    def forget(self, id: str) -> None:
        """Nothing of a replica is left."""
        self.records.pop(id, None)
        self._exits.pop(id, None)

    def _on_exit(self, id: str, how: str) -> None:
        """The driver's notification: a process has ended."""
        exit = self._exits.get(id)
        if exit is not None and not exit.done():
            exit.set_result(how)
            record = self.records.get(id)
            hint = "" if how.endswith("code 0") else records.cap_hint(record)
            lost = events.Lost(id, how, cause=records.cause_of(how, record))
            self._tasks.spawn(f"end of {id}", self._report_lost(lost, hint))

    def on_pong(self, id: str, busy_ms: int) -> None:
        """Control link: the model has run for so many milliseconds, modulo 2**32."""
        self._pong(id, busy_ms)

    def on_link_lost(self, id: str, reason: str) -> None:
        """Control link: it has ended."""
        self._tasks.spawn(f"end of {id}", self._explain(id, reason))

    def on_event(self, event: events.Event) -> None:
        """Control link: the replica reports."""
        match event:
            case events.Greeted():
                if self._is_standby(event.id):
                    self._on_started(event.id)
                self._emit(event)
            case events.Loaded():
                self._on_started(event.id)
                self._report_loaded(event)
            case events.Lost():
                is_short = any(word in event.reason for word in OUT_OF_MEMORY)
                hint = records.cap_hint(self.records.get(event.id)) if is_short else ""
                self._tasks.spawn(f"end of {event.id}", self._report_lost(event, hint))
            case _:
                self._emit(event)

    def _is_standby(self, id: str) -> bool:
        record = self.records.get(id)
        return record is not None and record.role == "standby"

    def _report_loaded(self, event: events.Loaded) -> None:
        """With the memory that it takes: within its cap, on a GPU as measured there."""
        event = records.within_cap(event, self.records.get(event.id), self._settings)
        if self._occupancy.covers(event.id):
            measure = self._occupancy.measure(event, self._emit)
            self._tasks.spawn(f"measure {event.id}", measure)
        else:
            self._emit(event)

    async def _report_lost(self, event: events.Lost, hint: str = "") -> None:
        """With its last lines, of which the last may say why; `hint` is added where it does not."""
        tail = await self._output.tail(event.id)
        words = last_words(tail)
        reason = event.reason + (f": {words}" if words else hint)
        self._emit(replace(event, reason=reason, log_tail=tail))

    async def _explain(self, id: str, reason: str) -> None:
        """Report a lost link, unless the driver tells in time how the process ended."""
        exit = self._exits.get(id)
        if exit is not None and not reason.startswith("did not answer"):
            await asyncio.wait([exit], timeout=EXIT_S)
            if exit.done():
                return  # `_on_exit` reports it
        await self._report_lost(events.Lost(id, f"control link lost: {reason}"))
