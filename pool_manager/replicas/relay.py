"""The path of replica events from drivers and control links to the manager.

1. Drivers notify of exits and engine losses; control links of the replica's events, of PONGs and
   of the end of the link.
2. `EventRelay` adds what the machine does not know, and reports the end of each replica once.
3. `Wiring` holds the receivers of the result: events, and run times.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pool_manager.core import events
from pool_manager.core.start_queue import Rank, StartPriority
from pool_manager.core.starts import WRONG
from pool_manager.driver import Exit
from pool_manager.fleet import Fleet
from pool_manager.gpus.occupancy import GpuOccupancy
from pool_manager.image_names import IMAGE_DIGEST
from pool_manager.ports import NoSecrets, Secrets
from pool_manager.replicas import records
from pool_manager.replicas.activity import ActivityReader
from pool_manager.replicas.messages import last_words
from pool_manager.replicas.output import ReplicaOutput
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, PlacementRefused
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import ENGINE
from runtime_image.link.run_counts import RunCount

OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Unable to allocate")
"""Texts of ONNX Runtime, Python and NumPy for a failed allocation."""
EXIT_S = 2.0
"""Seconds to wait for the driver's notification of the exit after a control link has ended."""
LATE_S = 0.25
"""Seconds that the output of a replica that has failed and printed nothing gets to arrive."""

EVICTED_S: Final = 30.0
"""Seconds for which the devices of an evicted replica take nothing after the first eviction on
their host (`refusals`)."""

Emit = Callable[[events.Event], None]


@dataclass(frozen=True, slots=True)
class Wiring:
    """The receivers and services that the owner of a launcher supplies.

    `emit` gets every event, `on_pong(id, busy_ms, runs)` each PONG; `turn(id)` returns the priority
    of a replica's start; `occupancy` measures the owner's GPUs. `secrets` is read when a server
    that needs some is bound.
    """

    emit: Emit
    occupancy: GpuOccupancy
    on_pong: Callable[[str, int, Sequence[RunCount]], None] = lambda _id, _busy_ms, _runs: None
    turn: Callable[[str], StartPriority] = lambda _id: StartPriority(Rank.WAITER, 0.0)
    secrets: Secrets = field(default_factory=NoSecrets)


class EventRelay:
    """Passes on the events of replicas, and holds their records. `on_started(id)` is called when a
    start is over, before its event is passed on."""

    def __init__(  # noqa: PLR0913 - who reports, and who receives it
        self,
        fleet: Fleet,
        settings: PoolSettings,
        output: ReplicaOutput,
        wiring: Wiring,
        on_started: Callable[[str], None],
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns CLOCK_MONOTONIC seconds, as in records."""
        self._clock = clock
        self._bound_s: dict[str, float] = {}
        self._settings = settings
        self._output = output
        self._occupancy, self._emit = wiring.occupancy, wiring.emit
        self._fleet = fleet
        self._activities = ActivityReader(fleet.of, output, wiring.occupancy.used_mib, clock)
        self._pong = wiring.on_pong
        self._on_started = on_started
        self._tasks = tasks
        self.records: dict[str, ReplicaRecord] = {}
        self.network_advice: dict[str, str] = {}
        """What to say of a replica that failed for lack of a network, without those that have
        one."""
        self._exits: dict[str, asyncio.Future[Exit]] = {}
        fleet.exits.subscribe(self._on_exit)
        fleet.engine_losses.subscribe(
            lambda host, reason: self._emit(events.EngineLost(reason, host))
        )

    def begin(self, record: ReplicaRecord) -> None:
        """Add a replica that is launched or adopted."""
        self.records[record.id] = record
        self._exits[record.id] = asyncio.get_running_loop().create_future()

    def forget(self, id: str) -> None:
        """Remove a replica that was released."""
        self.records.pop(id, None)
        self.network_advice.pop(id, None)
        self._bound_s.pop(id, None)
        self._exits.pop(id, None)
        self._activities.forget(id)

    def _on_exit(self, id: str, end: Exit) -> None:
        """Handle the driver's notification that a replica has exited."""
        exit = self._exits.get(id)
        if exit is None or exit.done():
            return
        exit.set_result(end)
        if end.is_eviction:
            self._emit(evicted(id, end.how))
            return
        record = self.records.get(id)
        hint = records.exit_hint(end.how, record)
        lost = events.Lost(id, end.how, cause=records.cause_of(end.how, record))
        self._tasks.spawn(f"end of {id}", self._report_lost(lost, hint))

    def on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        """LinkReceiver: pass a PONG on."""
        self._pong(id, busy_ms, runs)

    def on_link_lost(self, id: str, reason: str, *, is_its_fault: bool) -> None:
        """LinkReceiver: report the lost link as the end of the replica."""
        self._tasks.spawn(f"end of {id}", self._explain(id, reason, is_its_fault))

    def on_event(self, event: events.Event) -> None:
        """LinkReceiver: complete an event and pass it on."""
        match event:
            case events.Greeted():
                if reason := self._occupancy.why_refused(event):
                    self._emit(refused(event.id, reason))
                    return
                if self._is_standby(event.id):
                    self._on_started(event.id)
                self._emit(self._with_start(event))
            case events.Loaded():
                self._on_started(event.id)
                self._report_loaded(self._with_digest(self._with_load(event)))
            case events.Probed():
                self._report_probed(event)
            case events.Lost():
                is_short = any(word in event.reason for word in OUT_OF_MEMORY)
                hint = records.cap_hint(self.records.get(event.id)) if is_short else ""
                self._tasks.spawn(f"end of {event.id}", self._report_lost(event, hint))
            case _:
                self._emit(event)

    def on_bind(self, id: str) -> None:
        """Record that a replica is sent its BIND."""
        self._bound_s.setdefault(id, self._clock())

    def _with_start(self, event: events.Greeted) -> events.Greeted:
        """Return the event with the phases of a start on a host with another clock. The record
        keeps them, so that BIND passes them to the replica, which repeats them to a later
        manager."""
        record = self._clocked_apart(event.id)
        if record is None or record.role == "standby" or event.loaded:
            return event
        if "start" not in record.phases:
            phases = records.start_phases(record, event.phases, self._clock())
            record = self.records[event.id] = replace(record, phases=phases)
        return replace(event, phases=record.phases)

    def _with_load(self, event: events.Loaded) -> events.Loaded:
        """Return the event with the phases of a start on a host with another clock."""
        record, bound_s = self._clocked_apart(event.id), self._bound_s.get(event.id)
        if record is None or bound_s is None:
            return event
        phases = records.load_phases(record, event.phases, bound_s, self._clock())
        return replace(event, phases=phases)

    def _with_digest(self, event: events.Loaded) -> events.Loaded:
        """Return the event of a trial with the digest of its server's image, where its host knows
        that; what the replica itself says of it does not count."""
        if not event.report:
            return event
        report = {key: value for key, value in event.report.items() if key != IMAGE_DIGEST}
        record = self.records.get(event.id)
        host = self._fleet.find(record.host) if record is not None else None
        if host is not None and host.facts.digest_of is not None:
            report[IMAGE_DIGEST] = host.facts.digest_of(event.id)
        return replace(event, report=report)

    def _clocked_apart(self, id: str) -> ReplicaRecord | None:
        """Return the record of a replica whose clock is another one than this process's."""
        record = self.records.get(id)
        host = self._fleet.find(record.host) if record is not None else None
        return record if host is not None and host.facts.has_own_clock else None

    def _is_standby(self, id: str) -> bool:
        record = self.records.get(id)
        return record is not None and record.role == "standby"

    def _report_loaded(self, event: events.Loaded) -> None:
        """Emit Loaded with the replica's memory: limited by its cap, or as measured on a GPU, or in
        the container of a server, which its sidecar does not see."""
        record = self.records.get(event.id)
        event = records.within_cap(event, record, self._settings)
        if self._occupancy.covers(event.id):
            measure = self._occupancy.measure(event, self._emit)
        elif record is not None and record.engine == ENGINE and not event.memory_mib:
            measure = self._measure(event)
        else:
            self._emit(event)
            return
        self._tasks.spawn(f"measure {event.id}", measure)

    def _report_probed(self, event: events.Probed) -> None:
        """Emit Probed, with the server's activity if it is a trial's that may make no progress."""
        record = self.records.get(event.id)
        is_doubtful = record is not None and record.role == "trial" and event.status in WRONG
        if is_doubtful and self._activities.is_due(event.id):
            self._tasks.spawn(f"activity of {event.id}", self._read_activity(event))
        else:
            self._emit(event)

    async def _read_activity(self, event: events.Probed) -> None:
        activity = await self._activities.read(event.id, event.path)
        self._emit(replace(event, activity=activity))

    async def _measure(self, event: events.Loaded) -> None:
        mib = 0.0
        with contextlib.suppress(DriverError):
            processes = self._fleet.of(event.id).processes
            mib = await processes.used_mib(event.id) or 0.0
        report = {**event.report, "memory_mib": mib} if event.report else event.report
        self._emit(replace(event, memory_mib=mib, report=report))

    async def _report_lost(self, event: events.Lost, hint: str = "") -> None:
        """Emit Lost with the last log lines. If the last one has the replica's reason for its exit,
        that is added to the event's reason, otherwise `hint`; then the advice for the lack of a
        network, if that was the reason."""
        advice = self.network_advice.get(event.id, "")
        tail = await self._output.tail(event.id)
        if event.stage and not tail:
            # The failure came over the link; an engine may copy what a container printed later.
            await asyncio.sleep(LATE_S)
            tail = await self._output.tail(event.id)
        words = last_words(tail)
        reason = event.reason
        if not words or words not in reason:  # a sidecar's last line repeats what it reported
            reason += f": {words}" if words else hint
        if advice and records.lacks_network(replace(event, reason=reason), tail):
            reason += advice
        self._emit(replace(event, reason=reason, log_tail=tail))

    async def _explain(self, id: str, reason: str, is_its_fault: bool) -> None:
        """Report a lost link, unless the driver reports the exit of the process in time."""
        exit = self._exits.get(id)
        if exit is not None and not reason.startswith("did not answer"):
            await asyncio.wait([exit], timeout=EXIT_S)
            if exit.done():
                return  # `_on_exit` reports it
        why = f"control link lost: {reason}"
        await self._report_lost(events.Lost(id, why, is_its_fault=is_its_fault))


def refused(id: str, reason: str) -> events.Lost:
    """Return the loss of a replica whose host gave it GPUs that it cannot use."""
    error = PlacementRefused(reason)
    return events.Lost(id, reason, is_its_fault=False, cause=reason, refused_s=error.refused_s)


def evicted(id: str, how: str) -> events.Lost:
    """Return the loss of a replica whose place its engine has taken."""
    return events.Lost(
        id, how, is_its_fault=False, cause=how, refused_s=EVICTED_S, is_eviction=True
    )
