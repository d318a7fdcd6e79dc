"""The commands of the machine to the manager: imperative, frozen, plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pool_manager.core.health.liveness import Cause
from pool_manager.core.state import Role
from registry.model.hosts import LOCAL_HOST
from runtime_image.contract.health import Learnt

WarmOutcome = Literal["ready", "no_room", "failed"]
WakeOutcome = Literal["right", "wrong", "failed"]
"""right: it serves. wrong: awake, it did not answer its golden sample right. failed: it did not
wake, or ended meanwhile."""
BuildOutcome = Literal["ended", "given_up", "failed"]
"""ended: the report says whether the model was compiled."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Record and start a replica of `pool` on `devices` of `host`. For a standby `pool` is "", and
    `devices` are none unless it has a GPU."""

    id: str
    pool: str
    devices: tuple[str, ...]
    role: Role
    phases: dict[str, float]
    host: str = LOCAL_HOST


@dataclass(frozen=True, slots=True)
class Assign:
    """Assign a standby to a pool: place the model files, write the record, send the message."""

    id: str
    pool: str
    devices: tuple[str, ...]
    role: Role
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bind:
    """Send a replica the model to load."""

    id: str
    pool: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a replica finish its requests and exit. With `if_idle_s` it refuses if it was used within
    the last `if_idle_s` seconds."""

    id: str
    if_idle_s: float | None


@dataclass(frozen=True, slots=True)
class Quiesce:
    """Let a server's replica take no new exchanges, finish the open ones and exit."""

    id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Revoke Quiesce; the replica answers with NotIdle."""

    id: str


@dataclass(frozen=True, slots=True)
class Park:
    """Let a server sleep: it takes no new exchanges, asks its golden sample and calls its engine.
    It refuses (NotIdle) if it was used within the last `if_idle_s` seconds; else ParkAnswered
    follows. With None it finishes its open exchanges before, as after Quiesce, unless Resume
    revokes it. If its engine sleeps already, that is only said again."""

    id: str
    if_idle_s: float | None


@dataclass(frozen=True, slots=True)
class ProvePark:
    """Read what the processes of a replica hold on its devices: ParkProven follows if it is at most
    `residue_mib` and a slack on each, else ParkRefuted."""

    id: str
    residue_mib: float


@dataclass(frozen=True, slots=True)
class Unpark:
    """Wake the engine of a parked server; UnparkAnswered follows, also if it is awake already."""

    id: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Ask the golden sample of a server that is awake and serves nobody; Verified follows."""

    id: str


@dataclass(frozen=True, slots=True)
class RecordWake:
    """Count the wake of a parked replica. It took `took_s` from the command on; `reason` says what
    went wrong, "" if nothing."""

    key: str
    id: str
    outcome: WakeOutcome
    took_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopBatching:
    """Stop a replica from batching requests."""

    id: str


@dataclass(frozen=True, slots=True)
class RecordRefutation:
    """Store that a revision's requests must not be batched, with the reason from a replica."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send TERM to the replica's process group."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Kill what is left of the replica's process group, prove it gone, remove its folders."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Remove what this machine keeps of a replica: its host was removed by force while it was
    unreachable. Nothing can be done on the host, and no event follows."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the changed endpoints of these pools to gateways."""

    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class EndTrial:
    """Report the end of a trial: its `report` with the `device_kind` and the `device_type` (a
    DeviceType) that it ran on, or the stage and reason of its failure."""

    key: str
    report: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    reason: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndBuild:
    """Report the end of a build: its `report` and the device it ran on, or why it failed or was
    given up, and the stage. A build that was given up may succeed another time."""

    key: str
    outcome: BuildOutcome
    device: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    reason: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordNotCompiled:
    """Report that a replica of a pool does not use the compiled model for its device, and why."""

    key: str
    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndWarm:
    """Answer a WarmRequested: the pool is ready, or the reason why it is not."""

    key: str
    outcome: WarmOutcome
    reason: str


@dataclass(frozen=True, slots=True)
class WatchEngine:
    """Poll the engine of a host and report when it answers again (EngineBack)."""

    reason: str
    host: str = LOCAL_HOST


@dataclass(frozen=True, slots=True)
class RecordReplacement:
    """Count and log a server that ended because it did not work any more; another one has taken its
    place, or will. `reason` says what it did."""

    key: str
    id: str
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class AskSample:
    """Ask the golden sample of a server whose exchanges stand still; `SampleAnswered` follows."""

    id: str


@dataclass(frozen=True, slots=True)
class KeepLearnt:
    """Have a sidecar keep what was learnt of its server's silences, for the next manager."""

    id: str
    learnt: Learnt


@dataclass(frozen=True, slots=True)
class RecordSilence:
    """Log a ready server that does not work any more; `reason` says what it does."""

    key: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Record a decision and its reason, for `fnctl why`."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordColdStart:
    """Store the phases of a cold start, in milliseconds. It ended `ago_s` seconds ago, and the
    replica serves with `session`, "" if it failed or said none."""

    key: str
    id: str
    devices: tuple[str, ...]
    total_ms: float
    phases: dict[str, float]
    outcome: str
    ago_s: float = 0.0
    session: str = ""
    host: str = LOCAL_HOST


Command = (
    Launch
    | Assign
    | Bind
    | Drain
    | Quiesce
    | Resume
    | Park
    | ProvePark
    | Unpark
    | Verify
    | RecordWake
    | StopBatching
    | RecordRefutation
    | Terminate
    | Release
    | Abandon
    | Publish
    | EndTrial
    | EndBuild
    | RecordNotCompiled
    | EndWarm
    | WatchEngine
    | Note
    | RecordColdStart
    | RecordReplacement
    | AskSample
    | KeepLearnt
    | RecordSilence
)
