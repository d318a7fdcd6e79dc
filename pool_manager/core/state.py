"""The life of a replica as one table, and the records that decisions are made on.

Two rules:

1. A replica's state changes by `advance` alone, and only along TRANSITIONS. A pair that is not in
   the table is a defect of this program, never something that a process, a driver or a gateway
   could have caused: what they say is checked against the state first and dropped if it crossed.
2. A device is free only when its replica is STOPPED: when nothing of the process is left and the
   driver has proved it. Every other state is charged to the device in full.

What the states are for:

STARTING    The process was launched, and nothing has been heard of it. It may stand in the queue
            of starts (`start_queue`), which is no part of its time.
STANDBY     It has greeted (HELLO) and has no model. A replica of a function is in it for moments,
            a standby for hours: that is the only difference between the two until it is bound.
LOADING     It was told which model to load. A trial is verified in this state.
READY       Gateways send to it.
DRAINING    It was asked to go and finishes what it has. If it may refuse (`if_idle`), it still
            serves: the replica alone sees every gateway, so only it knows that it is idle.
RELEASING   The driver kills what is left and removes the folders, again until it succeeds. Where
            that is impossible, the device stays taken: a leaked process may hold its memory.
STOPPED     Nothing is left. The record is dropped in the same turn, so no replica is seen in it.

`lost` is the one step for every way in which a process ends or is given up: exit, crash, hang,
refused load, a device that fell off the bus. There is no state "failed": failures belong to the
pool (back-off, last error), since the next replica starts with them and this one is over.

`drain` is never used before LOADING, although the table would let a STANDBY drain: a replica
without a model has nothing to finish and is released at once (`ReplicaLifecycle.drain`). DRAINING
has two ways out, and `not idle`, back to READY, is the only step backwards: whatever was to happen
on the device is decided anew. A replica that may refuse and is then asked to go in any case takes
no step: the state stays, and `if_idle` becomes False.

Deadlines are not part of the table. A state may last for `state_limit_s` (`replicas`); a Tick past
that is treated like any other loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class State(StrEnum):
    """The state of a replica."""

    STARTING = "starting"
    STANDBY = "standby"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    RELEASING = "releasing"
    STOPPED = "stopped"


class Step(StrEnum):
    """What changes a replica's state."""

    GREETED = "greeted"
    BOUND = "bound"
    LOADED = "loaded"
    DRAINED = "drain"
    NOT_IDLE = "not idle"
    LOST = "lost"
    RELEASED = "released"


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.STARTING: {Step.GREETED: State.STANDBY, Step.LOST: State.RELEASING},
    State.STANDBY: {
        Step.BOUND: State.LOADING,
        Step.DRAINED: State.DRAINING,
        Step.LOST: State.RELEASING,
    },
    State.LOADING: {
        Step.LOADED: State.READY,
        Step.DRAINED: State.DRAINING,
        Step.LOST: State.RELEASING,
    },
    State.READY: {Step.DRAINED: State.DRAINING, Step.LOST: State.RELEASING},
    State.DRAINING: {Step.NOT_IDLE: State.READY, Step.LOST: State.RELEASING},
    State.RELEASING: {Step.RELEASED: State.STOPPED},
    State.STOPPED: {},
}


class ImpossibleStep(Exception):
    """A step that the table does not allow: a defect of the caller."""


def advance(state: State, step: Step) -> State:
    """The state after `step`. Raises ImpossibleStep where the table has no such row."""
    try:
        return TRANSITIONS[state][step]
    except KeyError:
        raise ImpossibleStep(f"{state} -> {step}") from None


Role = Literal["serve", "trial", "standby"]


@dataclass(frozen=True, slots=True)
class Device:
    """A CPU slot or a GPU. `kind` is "cpu" or "cuda".

    `memory_mib` is the size of its memory bank, 0 where memory is not accounted. Devices that draw
    on one memory, as CPU slots do, name the same `bank`.
    """

    id: str
    kind: str
    memory_mib: float = 0.0
    bank: str = ""

    def __post_init__(self) -> None:
        if not self.bank:
            object.__setattr__(self, "bank", self.id)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The settings and measurements of one revision that decisions need.

    `function` is the namespace and name; `max` bounds it over all its revisions. `target` is how
    many requests one replica takes at once. `load_s` is the measured load time, 0 if unknown,
    `memory_mib` what one replica was measured to take and `share` the part of a device it needs,
    1 for a device of its own. `batches`: its replicas batch requests. A trial is the pool of one
    throw-away replica.
    """

    key: str
    min: int = 0
    max: int = 1
    idle_s: float = 300.0
    device_kind: str = "any"
    target: int = 2
    load_s: float = 0.0
    bundle_bytes: int = 0
    role: Role = "serve"
    function: str = ""
    share: float = 1.0
    memory_mib: float = 0.0
    batches: bool = True


@dataclass(slots=True)
class Replica:
    """One replica as the manager sees it. Times are monotonic seconds.

    A standby is in a pool of its own until it is assigned; `is_bound` says whether the process
    was told, or is about to be told, which model to load. `if_idle` marks a drain that the replica
    may refuse, `refused_s` when it last did, `ready_s` when it had loaded. `deadline_s` is when
    the present state has lasted too long; `terminated` that TERM was sent. `batches`: it may batch
    requests, as far as is known.
    """

    id: str
    pool: str
    device: str
    role: Role
    since_s: float
    state: State = State.STARTING
    adopted: bool = False
    is_bound: bool = True
    if_idle: bool = False
    refused_s: float = float("-inf")
    ready_s: float = 0.0
    terminated: bool = False
    deadline_s: float = float("inf")
    last_used_s: float = 0.0
    limit: int = 0
    marks_started: bool = True
    memory_mib: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    waiting_since_s: float | None = None
    why: str = ""
    batches: bool = True

    @property
    def can_serve(self) -> bool:
        """Whether gateways may send to it: READY, or DRAINING and free to refuse."""
        return self.state is State.READY or (self.state is State.DRAINING and self.if_idle)

    @property
    def is_leaving(self) -> bool:
        """Whether it will be gone soon, unless it refuses. A release that failed may fail for
        ever."""
        is_stuck = self.deadline_s < float("inf")
        return self.state is State.DRAINING or (self.state is State.RELEASING and not is_stuck)

    @property
    def is_coming(self) -> bool:
        """Whether it is on its way to READY."""
        return self.state in (State.STARTING, State.STANDBY, State.LOADING)
