"""What can be asked of the shell. Imperative, frozen, plain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pool_manager.core.state import Role

WarmOutcome = Literal["ready", "no_room", "failed"]


@dataclass(frozen=True, slots=True)
class Launch:
    """Record and start a replica of `pool` on `device`; a standby has no pool yet, and a device
    only if that is a GPU."""

    id: str
    pool: str
    device: str
    role: Role
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a standby its model: files, record, one message."""

    id: str
    pool: str
    device: str
    role: Role
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bind:
    """Tell a replica which model to load."""

    id: str
    pool: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a replica finish and go; with `if_idle_s` it may refuse when used more recently."""

    id: str
    if_idle_s: float | None


@dataclass(frozen=True, slots=True)
class StopBatching:
    """Have a replica join no more requests."""

    id: str


@dataclass(frozen=True, slots=True)
class RecordRefutation:
    """Remember of a revision that its requests must not be joined; the reason is a replica's."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send TERM to the replica's group."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Kill what is left of the replica's group, prove it gone, remove its folders."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Publish:
    """These pools look different to gateways now."""

    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class EndTrial:
    """A trial is over: `report` if it went well, with the `device_kind` it ran on, else why not."""

    key: str
    report: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    reason: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndWarm:
    """A pool was asked to be warm: it is, or why it is not."""

    key: str
    outcome: WarmOutcome
    reason: str


@dataclass(frozen=True, slots=True)
class WatchEngine:
    """Say when the engine answers again (EngineBack)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Keep this decision for `fnctl why`."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordColdStart:
    """Keep a cold start's receipt; milliseconds. It was over `ago_s` seconds ago."""

    key: str
    id: str
    device: str
    total_ms: float
    phases: dict[str, float]
    outcome: str
    ago_s: float = 0.0


Command = (
    Launch
    | Assign
    | Bind
    | Drain
    | StopBatching
    | RecordRefutation
    | Terminate
    | Release
    | Publish
    | EndTrial
    | EndWarm
    | WatchEngine
    | Note
    | RecordColdStart
)
