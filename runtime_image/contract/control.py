"""Messages of the control link, as the JSON bodies of its frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

RECORD_FILE = "replica.json"
"""The record in a replica's run folder, written before it is launched."""
CONTROL_SOCKET = "ctl.sock"
DATA_SOCKET = "data.sock"
Role = Literal["serve", "trial", "standby"]
"""A replica serves, measures once for a deploy and goes, or waits for its model."""
SessionName = Literal["none", "original", "quick", "fast"]
"""Which of its model's sessions a replica runs: the model file's as it is, or those of its
preparation (`Preparation`)."""
PHASES = ("place", "evict", "start", "import", "bind", "read", "load", "first_run")
"""The phases of a cold start, in order, by the names they have everywhere."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What a replica finds in its run folder: who it is and what it may use.

    `device_kind` is "cpu" or "cuda"; `threads` its share of the CPU. `bound` is the pool key it
    was started for, `engine` the library to have ready before the model comes. A standby has no
    `bound`, `namespace` and `device` until it is given a model; the record then says which.
    """

    id: str
    token: str
    role: Role
    namespace: str
    bound: str
    model_dir: str
    device: str
    device_kind: str
    engine: str
    threads: int
    orphan_s: float
    memory_mib: int
    launched_s: float
    """CLOCK_MONOTONIC seconds when the manager launched it."""
    link: int
    """The manager's link version; a replica of another one refuses the record by it alone."""
    phases: dict[str, float] = field(default_factory=dict)
    """Milliseconds of the phases that were over by then (place, evict)."""


class Hello(TypedDict):
    """First frame of a replica. `bound` and `loaded` tell a new manager what it already serves;
    `bound` is "" while it has not been given a model."""

    token: str
    version: int
    pid: int
    features: list[str]
    bound: str
    loaded: NotRequired[Loaded]
    phases: dict[str, float]


class BindRequest(TypedDict):
    """All that a replica is told when it is given its model, whose files lie in its model folder.

    A launched replica knows most of it from its record, a standby nothing.
    """

    spec: dict[str, Any]
    """`ModelSpec` as JSON."""
    bound: str
    namespace: str
    role: Literal["serve", "trial"]
    device: str
    device_kind: str
    threads: int
    memory_mib: int
    phases: dict[str, float]
    """Milliseconds of the phases that were over by then (place, evict)."""
    assigned_s: float
    """CLOCK_MONOTONIC seconds when the manager decided; a standby's `bind` counts from there."""


class Loaded(TypedDict):
    """What came of loading. Times in milliseconds, `memory_mib` resident after the first runs."""

    revision: str
    limit: int
    marks_started: bool
    phases: dict[str, float]
    memory_mib: float
    session: SessionName
    """With what it began to serve."""
    batching_off: NotRequired[str]
    """Why it joins requests no more, in HELLO only: what a joined run showed."""
    report: NotRequired[dict[str, Any]]
    """Only of a trial: `Report` as JSON."""


class BatchingOff(TypedDict):
    """What a joined run showed: rows of requests are not independent."""

    reason: str


class LoadFailed(TypedDict):
    """Why a bundle was refused. `stage` is load or sample."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a trial replica measured. Latencies in milliseconds per run, keyed by rows.

    `batchable` is only true where the analysis proved that rows are independent and no comparison
    of runs refuted it; else `why_not` says why, and `operator` which one mixes rows, "" where none
    is to blame. `compared` is true where the comparison was made and refuted nothing.
    `equal_axes` as in `RowVerdict`; `proof` is the version of the rules. `profiled` is false where
    a synthetic input could not be run.
    """

    signature: dict[str, Any]
    load_ms: float
    memory_mib: float
    latency_ms: dict[str, float]
    batchable: bool
    why_not: str
    batch_max: int
    profiled: bool
    note: str = ""
    sample_outputs: dict[str, Any] = field(default_factory=dict)
    proof: int = 0
    operator: str = ""
    equal_axes: list[list[list[Any]]] = field(default_factory=list)
    compared: bool = False
