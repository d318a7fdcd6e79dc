"""What can happen. Past tense, frozen, plain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pool_manager.core.state import PoolSpec, Role
from registry.exchange import Demand


@dataclass(frozen=True, slots=True)
class PoolDefined:
    """A revision exists or its settings changed; a trial is wanted."""

    spec: PoolSpec


@dataclass(frozen=True, slots=True)
class PoolRemoved:
    """The revision is gone, or the trial is no longer wanted."""

    key: str


@dataclass(frozen=True, slots=True)
class WarmRequested:
    """Somebody wants a pool to have a ready replica.

    `beside`: only where it fits beside what runs of its function already, at once.
    """

    key: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class WarmCancelled:
    """Who asked for a warm pool asks no longer."""

    key: str


@dataclass(frozen=True, slots=True)
class SleepRequested:
    """Somebody wants a pool's idle replicas to go now."""

    key: str


@dataclass(frozen=True, slots=True)
class DemandReported:
    """A gateway worker said what it holds."""

    demand: Demand


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A gateway worker's connection ended."""

    worker: str


@dataclass(frozen=True, slots=True)
class Found:
    """The driver's list shows a replica of an earlier manager; a standby has no pool yet."""

    id: str
    pool: str
    device: str
    role: Role = "serve"


@dataclass(frozen=True, slots=True)
class ReplicasListed:
    """The driver's list is complete."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A replica's launch has begun; it may have stood in line until now."""

    id: str


@dataclass(frozen=True, slots=True)
class Greeted:
    """A replica's HELLO was accepted. `loaded`: it had been serving before."""

    id: str
    phases: dict[str, float]
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A replica can answer requests, or a trial is through (`report`)."""

    id: str
    limit: int
    marks_started: bool
    memory_mib: float
    phases: dict[str, float]
    report: dict[str, Any] = field(default_factory=dict)
    refuted: str = ""
    """As of `BatchingRefuted`, said again by one that had been serving before."""


@dataclass(frozen=True, slots=True)
class BatchingRefuted:
    """A joined run of a replica showed that rows mix; it joins no more."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A replica's first run took so long."""

    id: str
    ms: float


@dataclass(frozen=True, slots=True)
class NotIdle:
    """A replica refused to go; its last request ended `idle_s` ago."""

    id: str
    idle_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A replica is gone or useless: launch failed, exit, crash, refused load, hang.

    `is_its_fault`: it counts against its function when it happens before it could serve. `cause` is
    what callers may know of it, "" for nothing: `reason` may have words of the function's own log.
    """

    id: str
    reason: str
    log_tail: tuple[str, ...] = ()
    stage: str = ""
    is_its_fault: bool = True
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing of a replica is left and its device shows it."""

    id: str


@dataclass(frozen=True, slots=True)
class NotReleased:
    """Something of a replica cannot be got rid of."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineLost:
    """What the driver drives does not answer: nothing can be started or stopped. What runs may
    run on."""

    reason: str


@dataclass(frozen=True, slots=True)
class EngineBack:
    """It answers again; these replicas are still there."""

    running: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device is of no use to anybody (`is_gone`), or must be reset and is to be left."""

    device: str
    reason: str
    is_gone: bool


@dataclass(frozen=True, slots=True)
class DeviceBack:
    """A device can be used again."""

    device: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Every replica is to go."""


Event = (
    PoolDefined
    | PoolRemoved
    | WarmRequested
    | WarmCancelled
    | SleepRequested
    | DemandReported
    | WorkerLost
    | Found
    | ReplicasListed
    | Begun
    | Greeted
    | Loaded
    | BatchingRefuted
    | FirstRun
    | NotIdle
    | Lost
    | Released
    | NotReleased
    | EngineLost
    | EngineBack
    | DeviceLost
    | DeviceBack
    | Tick
    | Shutdown
)
