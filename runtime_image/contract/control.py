"""JSON bodies of the frames on the control link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, TypeGuard

from runtime_image.contract.contention import ContentionState
from runtime_image.contract.enrolment import FetchedFile

RECORD_FILE = "replica.json"
"""File of the `ReplicaRecord` in a replica's run folder, written before the launch."""
CONTROL_SOCKET = "ctl.sock"
DATA_SOCKET = "data.sock"
Role = Literal["serve", "trial", "build", "standby"]
"""serve: answers calls. trial: measures a model once for a deploy, then exits. build: compiles a
model in the background, then exits. standby: started ahead, waits for a model."""
SessionName = Literal["none", "original", "quick", "fast", "compiled"]
"""The session a replica runs: that of the unchanged model file, one of the sessions of its
`Preparation`, or that of its `CompiledModel`."""
WAKE_PHASES = ("wake", "verify")
"""Phases of the wake of a parked replica: its engine wakes, and answers its golden sample. They
follow `place` and `evict`."""
PHASES = (
    *("place", "evict", "start", "import", "bind", "fetch", "read", "load"),
    *WAKE_PHASES,
    "first_run",
)
"""Phases of a cold start or a wake, in order, by the names used in all metrics, logs and
messages."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Identity, resources and folders of one replica.

    `device_kind` is "cpu" or "cuda"; `threads` is the replica's share of the CPU. `bound` is the
    key of the pool the replica was started for, `engine` the library to import before the model
    arrives. `bound`, `namespace` and `devices` of a standby are empty until the standby gets a
    model; the record then contains them.
    """

    id: str
    token: str
    role: Role
    namespace: str
    bound: str
    model_dir: str
    devices: tuple[str, ...]
    """Ids of its devices: one, or several GPUs of its host."""
    device_kind: str
    engine: str
    threads: int
    orphan_s: float
    memory_mib: int
    launched_s: float
    """CLOCK_MONOTONIC seconds at which the manager launched the replica."""
    link: int
    """Link version of the manager. A replica of another version refuses the record for this field
    alone."""
    phases: dict[str, float] = field(default_factory=dict)
    """Milliseconds of the phases that were over at the launch (place, evict)."""
    host: str = "local"
    """Host of the replica. On any but the local host, the clock of `launched_s` is another one, and
    no descriptor comes with WELCOME."""
    control: str = ""
    """Address of the manager as the replica dials it (`contract.addresses`); "" for CONTROL_SOCKET
    in its run folder."""
    data: str = ""
    """Address at which the replica listens for gateways; "" if WELCOME brings the listener. One of
    TLS has no host until the replica has enrolled, then the one at which gateways dial it."""
    greeting: str = ""
    """Text with which the replica begins every data link; "" for none."""


def record_from(data: dict[str, Any]) -> ReplicaRecord:
    """Return the record with these fields, as JSON has them, of this link version or the one
    before. Raises TypeError for other fields."""
    named = dict(data)
    if "device" in named:  # until version 9, "" for none
        device = named.pop("device")
        named["devices"] = [device] if device else []
    devices = named.get("devices")
    if not is_texts(devices):
        raise TypeError(f"expected texts as devices, got {str(devices)[:100]!r}")
    return ReplicaRecord(**{**named, "devices": tuple(devices)})


def is_texts(value: Any) -> TypeGuard[list[str]]:
    """Whether `value` is a list of strings."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


class SeenGpu(TypedDict):
    """A GPU or MIG slice as its driver reports it in the container of a replica, in MiB. A value
    that it does not report is missing."""

    uuid: str
    total_mib: NotRequired[float]
    """Its memory, less what the driver keeps for itself."""
    used_mib: NotRequired[float]
    """What all programs on it have in use, whichever container they are in."""


class Hello(TypedDict):
    """First frame of a replica. `bound` and `loaded` are for a restarted manager: they state which
    model the replica already serves. `bound` is "" before the replica gets a model."""

    token: str
    version: int
    pid: int
    features: list[str]
    dial: int
    """Number of this attempt of the process to connect, 1 for the first: of several connections of
    a replica, the one with the largest number counts."""
    bound: str
    loaded: NotRequired[Loaded]
    phases: dict[str, float]
    gpus: NotRequired[list[SeenGpu]]
    """The GPUs that a replica which dials in sees, as it began; missing where it can read none."""


class BindRequest(TypedDict):
    """Everything a replica needs to load its model; the files are in its model folder.

    A launched replica has most of these fields in its record already, a standby has none of them.
    """

    spec: dict[str, Any]
    """`ModelSpec` as JSON."""
    bound: str
    namespace: str
    role: Literal["serve", "trial", "build"]
    devices: list[str]
    """Ids of its devices."""
    device: NotRequired[str]
    """The only device, for a replica of link version 9."""
    device_kind: str
    threads: int
    memory_mib: int
    phases: dict[str, float]
    """Milliseconds of the phases that were over at the assignment (place, evict)."""
    assigned_s: float
    """CLOCK_MONOTONIC seconds of the manager's decision; the `bind` phase of a standby starts
    here."""
    secrets: NotRequired[dict[str, str]]
    """Variables of a server whose values are secrets; they are stored nowhere."""
    files: NotRequired[list[FetchedFile]]
    """All files of the model folder, for a replica that fetches them itself."""


class Loaded(TypedDict):
    """Result of a successful load. Times in milliseconds; `memory_mib` is resident memory after the
    first runs."""

    revision: str
    limit: int
    marks_started: bool
    phases: dict[str, float]
    memory_mib: float
    session: SessionName
    """Session that the replica started to serve with."""
    not_compiled: NotRequired[str]
    """Why the spec's compiled model is not used: another key, a file that differs, an error."""
    batching_off: NotRequired[str]
    """Reason why the replica stopped joining requests, as found in a joined run; only in HELLO."""
    report: NotRequired[dict[str, Any]]
    """`Report` as JSON; only from a trial."""
    ready_for_s: NotRequired[float]
    """Seconds since a server was ready; only in HELLO."""
    learnt: NotRequired[dict[str, float]]
    """A `health.Learnt`, as the last manager sent it; only in HELLO of a sidecar that has one."""
    life: NotRequired[str]
    """A `parks.LifeState`; only of a sidecar that can be told to park."""
    gpus: NotRequired[list[SeenGpu]]
    """As in HELLO, after the first runs; only from a model's trial."""
    has_slept: NotRequired[bool]
    """Whether its engine was put to sleep before, and may keep the host memory that it took; only
    in HELLO of such a sidecar."""


class BatchingOff(TypedDict):
    """A joined run showed that the rows of its requests are not independent; `reason` says how."""

    reason: str


class LoadFailed(TypedDict):
    """Reason why a bundle was refused. `stage` is fetch, load, sample, or start of a server."""

    stage: str
    reason: str


class Probed(TypedDict):
    """What the probes of a starting server last met; sent every PROBED_S until it is ready."""

    path: str
    """The path of the readiness probe."""
    status: int
    """The status of the answer, 0 without an HTTP answer."""
    answer: str
    """The answer, or why there was none, in words."""
    seconds: float
    """Seconds since the answer is the same."""


PROBED_S = 1.0
"""Seconds between two PROBED frames."""


@dataclass(frozen=True, slots=True)
class Report:
    """Measurements of a trial replica. Latencies are milliseconds per run, keyed by rows.

    `batchable` is true only if the analysis proved that rows are independent and no comparison of
    runs refuted it. Otherwise `why_not` is the reason, and `operator` the operator that mixes rows
    ("" if no single operator is the cause). `compared`: the comparison ran and refuted nothing.
    `equal_axes` as in `RowVerdict`; `proof` is the version of the rules. `profiled` is false if a
    synthetic input could not be run. `contention` is that of the runs behind `latency_ms`.
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
    contention: ContentionState = "unknown"
