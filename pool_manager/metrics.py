"""Counters of replicas: starts, failures by reason, evictions, supply. No I/O but a
line of the log for each death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

import structlog

from pool_manager.core import commands, events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import WakeOutcome
from pool_manager.core.events import Lost
from pool_manager.core.eviction import EVICTED, MAKES_ROOM
from pool_manager.core.health.liveness import Cause
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import GAVE_WAY, OVERDUE

log = structlog.get_logger()

REASONS: Final = ("load", "memory", "hang", "killed", "exited", "link", "engine", "other")
"""Reasons of failures, in this order: the model was refused; out of memory; a time limit or a
missing answer; killed by a signal; exited by itself; only the control link was lost; the engine or
a device was lost; anything else."""
_WORDS: Final = (
    ("memory", ("ran out of memory", "bad_alloc", "MemoryError", "Unable to allocate")),
    ("hang", (OVERDUE, "hangs", "did not answer")),
    ("killed", ("was killed by",)),
    ("exited", ("exited",)),
    ("link", ("control link lost",)),
)
"""Substrings of the reasons from drivers, control links and the machine; the first match counts."""


KINDS: Final = ("process", "standby", "ahead", "trial", "build")
"""How a replica starts: as a new process, from a standby, as a standby, for a trial, or for a
build."""
_KIND_OF: Final = {"standby": "ahead", "trial": "trial", "build": "build"}
OUTCOMES: Final = ("ready", "failed", "dropped", "refused")
"""Outcomes of a start; a dropped start was no longer needed, a refused one had no place on its
host, or lost it before it was ready."""
WHEN: Final = ("starting", "serving")
EVICTIONS: Final = ("idle", "busy", "engine")
"""Whose place was taken: that of an idle or a busy replica for another function, or that of any
replica by the engine of its host for others."""
COLD_STARTS: Final = ("ready", "failed")
WAKES: Final[tuple[WakeOutcome, ...]] = get_args(WakeOutcome)
"""Outcomes of wakes of parked replicas."""
Step = Literal["event", "command", "metering"]
STEPS: Final[tuple[Step, ...]] = get_args(Step)
"""Steps in which the manager may have a defect: handling an event, carrying out a command,
counting."""


def reason_of(lost: Lost) -> str:
    """Return the entry of REASONS for a loss."""
    said = reason_in(lost.reason)
    if lost.stage and said != "memory":
        return "load"
    return "engine" if said == "other" and not lost.is_its_fault else said


def reason_in(text: str) -> str:
    """Return the entry of REASONS for a text."""
    for reason, words in _WORDS:
        if any(word in text for word in words):
            return reason
    return "other"


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since the server's start.

    Starts by kind and outcome; failures of replicas by `WHEN` and reason; evictions (`EVICTIONS`);
    cold starts by outcome; MiB freed by device; pools whose batching was
    refuted; defects of the manager by step.
    """

    starts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    cold_starts: Counter[str] = field(default_factory=Counter)
    reclaimed_mib: dict[str, float] = field(default_factory=dict)
    refuted: Counter[str] = field(default_factory=Counter)
    replaced: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Servers that did not work any more, by function and `Cause`."""
    wakes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Wakes of parked replicas, by function and `WAKES`."""
    defects: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Counts:
        """Return a snapshot."""
        return Counts(
            self.starts.copy(),
            self.failures.copy(),
            self.evictions.copy(),
            self.cold_starts.copy(),
            dict(self.reclaimed_mib),
            self.refuted.copy(),
            self.replaced.copy(),
            self.wakes.copy(),
            self.defects.copy(),
        )


@dataclass(slots=True)
class _Counted:
    """State of one replica for counting. `starting` is its kind until it has started, then "".
    `failed`: its end was not requested. `refused`: the engine of its host ended it. `is_leaving`:
    it drains. `is_over`: it is being released."""

    devices: tuple[str, ...]
    starting: str = ""
    failed: bool = False
    refused: bool = False
    is_leaving: bool = False
    is_over: bool = False
    memory_mib: float = 0.0
    pool: str = ""


class ReplicaCounter:
    """Counts starts, ends and evictions of replicas from the machine's events and commands, and
    logs the deaths of those that served."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._replicas: dict[str, _Counted] = {}

    def note(self, about: events.Event | commands.Command) -> None:
        """Count an event that the machine has handled, or one of its commands."""
        if isinstance(about, commands.Command):
            self._done(about)
        elif isinstance(about, events.Found):
            self._replicas[about.id] = _Counted(about.devices, pool=about.pool)
        elif life := self._replicas.get(getattr(about, "id", "")):
            self._happened(about, life)

    def failed(self, step: Step) -> None:
        """Count a defect of the manager in this step."""
        self.counts.defects[step] += 1

    def _happened(self, event: events.Event, life: _Counted) -> None:
        match event:
            case events.Greeted() if life.starting == "ahead":
                self._started(life, "ready")
            case events.Loaded():
                life.memory_mib = event.memory_mib
                self._started(life, "ready")
            case events.NotIdle():
                life.is_leaving = False
            case events.Lost() if event.refused_s:
                life.refused = not life.is_over
                self.counts.evictions["engine"] += event.is_eviction and not life.is_over
            case events.Lost() if not (life.is_leaving or life.is_over):
                if not life.starting:
                    log.warning(
                        "a replica died", replica=event.id, pool=life.pool, reason=event.reason
                    )
                self._failed(life, reason_of(event))
            case events.Released():
                self._reclaim(event.id, life)

    def _done(self, command: commands.Command) -> None:
        match command:
            case commands.Launch():
                kind = _KIND_OF.get(command.role, "process")
                self._replicas[command.id] = _Counted(command.devices, kind, pool=command.pool)
            case commands.Assign():
                kind = "trial" if command.role == "trial" else "standby"
                self._replicas[command.id] = _Counted(command.devices, kind, pool=command.pool)
            case commands.Drain() | commands.Quiesce() if command.id in self._replicas:
                self._replicas[command.id].is_leaving = True
            case commands.Release() if command.id in self._replicas:
                self._over(self._replicas[command.id], command.reason)
            case commands.Abandon() if command.id in self._replicas:
                self._over(self._replicas.pop(command.id), command.reason)
            case commands.RecordRefutation():
                self.counts.refuted["rows"] += 1
            case commands.RecordReplacement():
                function = command.key.partition("@")[0]
                self.counts.replaced[function, command.cause] += 1
            case commands.RecordWake():
                self.counts.wakes[command.key.partition("@")[0], command.outcome] += 1
            case commands.RecordColdStart():
                self.counts.cold_starts["ready" if command.outcome == "ready" else "failed"] += 1

    def _over(self, life: _Counted, reason: str) -> None:
        """Count the first release command of a replica; later ones are retries."""
        if life.is_over:
            return
        if reason.endswith(OVERDUE):
            self._failed(life, reason_in(reason))
        if reason.startswith(EVICTED):
            self.counts.evictions["idle"] += 1
        elif reason.startswith((GAVE_WAY, MAKES_ROOM)):
            self.counts.evictions["busy"] += 1
        life.is_over = True
        ended = "failed" if life.failed else "refused" if life.refused else "dropped"
        self._started(life, ended)

    def _started(self, life: _Counted, outcome: str) -> None:
        if life.starting:
            self.counts.starts[life.starting, outcome] += 1
            life.starting = ""

    def _failed(self, life: _Counted, reason: str) -> None:
        life.failed = True
        self.counts.failures["starting" if life.starting else "serving", reason] += 1

    def _reclaim(self, id: str, life: _Counted) -> None:
        """Count the measured memory of a released replica as freed."""
        del self._replicas[id]
        if life.memory_mib:
            reclaimed_mib = self.counts.reclaimed_mib
            for device in life.devices:
                reclaimed_mib[device] = reclaimed_mib.get(device, 0.0) + life.memory_mib


class Supplied(NamedTuple):
    """A pool, its wanted number of replicas, and its replicas counted by state."""

    pool: str
    wanted: int
    replicas: dict[str, int]


def supplied(cluster: Cluster) -> list[Supplied]:
    """Return every pool that has or wants replicas, including the pools of standbys. Trials and
    builds are left out: they receive no calls."""
    keys = sorted(cluster.live.keys() | cluster.blocked)
    pools = (cluster.pools[key] for key in keys if key in cluster.pools)
    return [
        Supplied(pool.key, _wanted(pool), _states(pool))
        for pool in pools
        if pool.spec.role not in ("trial", "build") and (pool.replicas or _wanted(pool))
    ]


def _wanted(pool: Pool) -> int:
    return pool.spec.max if pool.spec.role == "standby" else pool.wanted


def _states(pool: Pool) -> dict[str, int]:
    return dict(Counter(str(replica.state) for replica in pool.replicas.values()))


class Counters:
    """Counters of one manager. `cluster` has the records; `line` holds the queued starts."""

    def __init__(self, cluster: Cluster, line: Sized) -> None:
        self._cluster = cluster
        self._line = line
        self._tally = ReplicaCounter()
        self.note = self._tally.note
        self.failed = self._tally.failed

    def counts(self) -> Counts:
        """Return a snapshot of the counts. Functions whose servers may be replaced have all causes
        from 0 on, those that may be parked all outcomes of wakes: Prometheus sees no increase in a
        series that begins with 1. The wakes of functions that are gone are left out."""
        counts, there = self._tally.counts.copy(), set[str]()
        for pool in self._cluster.pools.values():
            function = pool.key.partition("@")[0]
            there.add(function)
            if pool.spec.is_server and pool.spec.role == "serve" and pool.spec.hang != "off":
                for cause in Cause:
                    counts.replaced.setdefault((function, cause), 0)
            if pool.spec.park is not None and pool.spec.role == "serve":
                for outcome in WAKES:
                    counts.wakes.setdefault((function, outcome), 0)
        for key in [key for key in counts.wakes if key[0] not in there]:
            del counts.wakes[key]
        return counts

    def supplied(self) -> list[Supplied]:
        """Return every pool that has or wants replicas."""
        return supplied(self._cluster)

    @property
    def waiting_starts(self) -> int:
        """Number of starts in the start queue."""
        return len(self._line)
