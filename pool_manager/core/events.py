"""The events of the machine: past tense, frozen, plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pool_manager.core.health.liveness import Reading
from pool_manager.core.hosts import ALL_KINDS, HostMemory
from pool_manager.core.starts import Activity
from pool_manager.core.state import Device, PoolSpec, Role, State
from registry.exchange import Demand
from registry.model.hosts import LOCAL_HOST, Ability
from runtime_image.contract.gpus import Reading as GpuReading
from runtime_image.contract.health import Learnt
from runtime_image.contract.samples import SampleVerdict


@dataclass(frozen=True, slots=True)
class PoolDefined:
    """A revision was stored or its settings changed; a trial was requested."""

    spec: PoolSpec


@dataclass(frozen=True, slots=True)
class PoolRemoved:
    """The revision was deleted, or the trial is no longer needed."""

    key: str


@dataclass(frozen=True, slots=True)
class WarmRequested:
    """An operator or a deploy requested a ready replica of a pool.

    `beside`: only if it fits at once, without stopping a replica of the function's other revisions.
    """

    key: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class WarmCancelled:
    """A request for a warm pool was cancelled."""

    key: str


@dataclass(frozen=True, slots=True)
class SleepRequested:
    """An operator requested that a pool's idle replicas be stopped now; with `force` those that
    answer calls, too, once these are answered or their time to drain is over."""

    key: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class ParkRequested:
    """An operator requested that a pool's idle replicas be parked now."""

    key: str


@dataclass(frozen=True, slots=True)
class UnparkRequested:
    """An operator requested that a parked replica of a pool be woken: a WarmRequested, which
    EndWarm answers; also if none is parked."""

    key: str


@dataclass(frozen=True, slots=True)
class UnloadRequested:
    """A client requested that a pool's replicas be stopped as soon as they are idle."""

    key: str


@dataclass(frozen=True, slots=True)
class CauseRemoved:
    """An operator removed a cause for which a pool's starts may have failed: a missing secret, a
    lost image."""

    key: str


@dataclass(frozen=True, slots=True)
class DemandReported:
    """A gateway worker reported its load."""

    demand: Demand


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A gateway worker's connection ended."""

    worker: str


@dataclass(frozen=True, slots=True)
class Found:
    """A replica of an earlier manager: the driver's list has it, or its host has not answered yet.
    `pool` is "" for a standby."""

    id: str
    pool: str
    devices: tuple[str, ...]
    role: Role = "serve"
    host: str = LOCAL_HOST


@dataclass(frozen=True, slots=True)
class ReplicasListed:
    """Every replica on the driver's list was reported (Found)."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A replica's start left the start queue."""

    id: str


@dataclass(frozen=True, slots=True)
class Starting:
    """The engine of a host works on a start: it pulls an image, or makes a sandbox. Repeated when
    `text` changes; the time limit of the start begins anew, up to `state.STARTING_MAX_S` in all."""

    id: str
    text: str
    """What the engine does, in its own words."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A replica's HELLO was accepted. `loaded`: it has its model already (an adopted replica)."""

    id: str
    phases: dict[str, float]
    loaded: bool = False
    gpus: tuple[GpuReading, ...] = ()
    """Its GPUs as it read them before it loaded anything; only of a replica whose host does not
    report them."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The readiness probes of a starting server have met `answer`, with `status` (0 without an HTTP
    answer), for `seconds` at `path`. `activity` is what the server has done, None if that was not
    read, or cannot be."""

    id: str
    path: str
    status: int
    answer: str
    seconds: float
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class FetchReported:
    """A starting replica that fetches its files itself has been served `done_bytes` of
    `total_bytes`, `seconds` after it was told to."""

    id: str
    done_bytes: int
    total_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """A replica is ready for requests, or a trial is complete (`report`)."""

    id: str
    limit: int
    marks_started: bool
    memory_mib: float
    phases: dict[str, float]
    report: dict[str, Any] = field(default_factory=dict)
    refuted: str = ""
    """The reason of `BatchingRefuted`, repeated by a replica that had been serving before."""
    session: str = ""
    """Name of the session in the contract, "" if it said none."""
    not_compiled: str = ""
    """Why the compiled model that it was given is not used."""
    ready_for_s: float = 0.0
    """Seconds since it was ready, of a server that is adopted."""
    learnt: Learnt | None = None
    """What the earlier manager had learnt of such a server's silences, None if nothing."""
    life: State = State.READY
    """What the sidecar of such a server knows of a park: READY, PARKING, PARKED, UNPARKING or
    VERIFYING."""
    is_unparkable: bool = False
    """Whether nothing can park it: it was started without the calls of a park or without a golden
    sample, or others can reach its engine."""
    has_slept: bool = False
    """Whether its engine was put to sleep under an earlier manager."""
    gpus: tuple[GpuReading, ...] = ()
    """Its GPUs as it read them after the first runs, as in `Greeted`."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """A serving replica was given a compiled model, and now serves with `session`; `reason` says
    why that is not the compiled one, "" if it is."""

    id: str
    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchingRefuted:
    """A batch on a replica showed that its rows depend on each other; the replica stopped
    batching."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A replica finished its first run, which took `ms`."""

    id: str
    ms: float


@dataclass(frozen=True, slots=True)
class NotIdle:
    """A replica refused a drain, or takes exchanges again after Resume; its last request ended
    `idle_s` seconds ago."""

    id: str
    idle_s: float


@dataclass(frozen=True, slots=True)
class ParkAnswered:
    """The engine of a server was called to sleep, which took `took_s`. `problem` says why it does
    not, "" if it says that it does."""

    id: str
    problem: str
    took_s: float


@dataclass(frozen=True, slots=True)
class ParkProven:
    """The manager has read what a replica holds on each of its devices: little enough."""

    id: str
    residue_mib: dict[str, float]


@dataclass(frozen=True, slots=True)
class ParkRefuted:
    """The same was too much, or could not be read."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnparkAnswered:
    """The engine of a parked server was called to wake, which took `took_s`. `problem` says why it
    does not, "" if it is awake."""

    id: str
    problem: str
    took_s: float
    host_mib: float = 0.0
    """MiB of host memory that its sleep and its wake took at most; only from a trial, 0 for others
    and for a server that is apart."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The golden sample of a server that woke was answered right, or with a `problem`."""

    id: str
    problem: str


@dataclass(frozen=True, slots=True)
class Observed:
    """A sidecar has read how its ready server fares. `gpu` is the use of its GPU, 0 to 1; 0 for a
    replica without one, None if unknown."""

    id: str
    reading: Reading
    gpu: float | None = 0.0


@dataclass(frozen=True, slots=True)
class SampleAnswered:
    """The golden sample of a server was asked: after AskSample if `in_silence`, else because the
    server was idle. WRONG is confirmed by a second ask. `reason` is what showed."""

    id: str
    verdict: SampleVerdict
    reason: str
    in_silence: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """A replica is gone or useless: failed launch, exit, crash, refused load, hang.

    `is_its_fault`: a loss before READY counts against the function. `is_lasting`: each further
    start would fail as well, until somebody changes what `reason` names. `cause` is the text shown
    to callers, "" for none; `reason` is not shown, because it may quote the function's own log.
    """

    id: str
    reason: str
    log_tail: tuple[str, ...] = ()
    stage: str = ""
    is_its_fault: bool = True
    cause: str = ""
    is_lasting: bool = False
    refused_s: float = 0.0
    """Seconds for which no replica is placed on its devices again, as the engine of their host has
    refused this one, or taken its place for others; 0 for none. The pool is placed anew at once,
    and no failure counts. `reason` and `cause` have the engine's own words."""
    is_eviction: bool = False
    """Whether the engine has taken its place for others (`driver.Exit`)."""


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing of a replica is left, neither processes nor memory on its device."""

    id: str


@dataclass(frozen=True, slots=True)
class NotReleased:
    """A release failed: processes or memory of the replica are left."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The container engine of a host does not answer: nothing can be started or stopped there.
    Running replicas may continue."""

    reason: str
    host: str = LOCAL_HOST


@dataclass(frozen=True, slots=True)
class EngineBack:
    """The engine of a host answers again; `running` are the replicas that still run there."""

    running: frozenset[str]
    host: str = LOCAL_HOST


@dataclass(frozen=True, slots=True)
class HostDefined:
    """A host was added, or its settings changed. `is_draining`: no replica is placed there, and
    those that run there drain. For the local host, too. Takes back HostRemoved."""

    host: str
    labels: tuple[tuple[str, str], ...] = ()
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class HostUp:
    """The control connection to a host is established and its engine answers.

    `epoch` rises with every connection, and counts from 1; an event of an earlier connection is
    ignored. `devices` are all devices of the host, `running` the replicas that run there: every
    other one is lost. The reporter ends those of `running` that it has no record of. `rtt_s` is
    the round trip of the link. A replica may greet before this event or after it.
    """

    host: str
    epoch: int
    devices: tuple[Device, ...]
    running: frozenset[str]
    rtt_s: float = 0.0
    abilities: frozenset[Ability] = frozenset()
    """What the host can run beside models."""
    memory_mib: float = 0.0
    """Host memory that replicas may take where it has no CPU slots, 0 if it is not accounted."""
    standby_kinds: frozenset[str] = ALL_KINDS
    """The kinds of its devices for which standbys can be kept."""


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """The memory of a host was read, as it is about once a second while the host is connected."""

    host: str
    memory: HostMemory


@dataclass(frozen=True, slots=True)
class HostUnreachable:
    """The control connection to a host is lost, or could not be established. Its replicas may run
    and serve on. `epoch` is that of the HostUp which it ends, 0 for the present one."""

    host: str
    reason: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class HostRemoved:
    """The operator removed a host. Its replicas drain; the host and its devices are forgotten when
    none is left. While it is unreachable, that is never the case, unless `is_forced`: its replicas
    are then abandoned, at once if their calls may run again elsewhere, the others when the host is
    GONE. Those of a host that has never answered are abandoned when it is GONE."""

    host: str
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class HostStocked:
    """What a host has already: complete sets of files (as `PoolSpec.files`), images (ids). New
    files come at `bytes_per_s`."""

    host: str
    files: frozenset[str]
    images: frozenset[str]
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device is unusable (`is_gone`), or needs a reset and must be emptied."""

    device: str
    reason: str
    is_gone: bool


@dataclass(frozen=True, slots=True)
class DeviceBack:
    """A device can be used again."""

    device: str


@dataclass(frozen=True, slots=True)
class Tick:
    """One second has passed, or the time of `Machine.due_s` was reached."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The server is shutting down: every replica is drained."""


Event = (
    PoolDefined
    | PoolRemoved
    | WarmRequested
    | WarmCancelled
    | SleepRequested
    | ParkRequested
    | UnparkRequested
    | UnloadRequested
    | CauseRemoved
    | DemandReported
    | WorkerLost
    | Found
    | ReplicasListed
    | Begun
    | Starting
    | Greeted
    | Probed
    | FetchReported
    | Loaded
    | Upgraded
    | BatchingRefuted
    | FirstRun
    | NotIdle
    | ParkAnswered
    | ParkProven
    | ParkRefuted
    | UnparkAnswered
    | Verified
    | Observed
    | SampleAnswered
    | Lost
    | Released
    | NotReleased
    | EngineLost
    | EngineBack
    | HostDefined
    | HostUp
    | MemoryRead
    | HostUnreachable
    | HostRemoved
    | HostStocked
    | DeviceLost
    | DeviceBack
    | Tick
    | Shutdown
)
