"""Types of bodies about functions, their revisions and their state."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from admin.documents.deploys import OperationRow
from registry.builds import BuildState, Compilation, Outside
from registry.exchange import PoolState
from registry.model.functions import ExchangeLimits, Limits
from registry.model.history import ColdStart, Decision, StateInterval
from registry.model.parks import ParkSettings
from registry.model.profiles import Profile
from registry.model.revisions import Batching, DeviceNeed, Engine, PredictForm
from registry.model.servers import ModelApi, Mount, PathRules, PythonSettings, ServerImage
from runtime_image.contract.compiled import CompilerName, Form, OutputParity, ShapeRange
from runtime_image.contract.model import InputRule, OutputRule
from runtime_image.contract.precision import PrecisionReport
from runtime_image.contract.samples import SampleRequest, SampleVerdict
from runtime_image.contract.server import Network
from runtime_image.contract.signature import Signature

T = TypeVar("T")


class Items(msgspec.Struct, Generic[T]):
    """A list. `next`: the cursor of the next page, null for none."""

    items: list[T]
    next: str | None


class BuildRow(msgspec.Struct, kw_only=True):
    """State of the build of a compiled model. `began_s` (Unix seconds) of a running one;
    `estimate_s` is how long it takes by earlier builds."""

    state: Literal[BuildState, "unavailable"]
    reason: str
    began_s: float | None
    estimate_s: float | None


class BuildDetail(BuildRow, kw_only=True):
    """All about a build. `host` and `device_model` say which devices it is for; the model is "" for
    CPU slots, both are "" where there is no device. `elapsed_s` of a build that is done is how long
    it took. `outside`: what happens to a request outside of `ranges`. `form`: "context" for a
    wholly compiled graph, "cache" for compiled parts. `parity`: the compiled model beside the
    ordinary one over `samples`. Milliseconds per run by rows."""

    attempts: int
    elapsed_s: float | None
    compiler: CompilerName | None
    device_type: str | None
    host: str
    device_model: str
    ranges: list[ShapeRange]
    outside: Outside | None
    form: Form | None
    parity: list[OutputParity]
    samples: int
    ordinary_ms: dict[str, float]
    compiled_ms: dict[str, float]
    load_ms: float | None
    memory_mib: float | None
    made_s: float | None


class ParkedRow(msgspec.Struct, kw_only=True):
    """A replica that sleeps."""

    id: str
    devices: list[str]
    """Ids of its devices."""
    since_s: float
    """When it was proved to sleep."""
    ends_s: float | None
    """When it is stopped; null while its host cannot be reached."""
    residue_mib: float
    """MiB that it keeps of each of its devices."""
    host_mib: float
    """MiB of host memory that are charged to it."""
    why: str
    """Why it was parked."""


class ParkRow(msgspec.Struct, kw_only=True):
    """The parks of a function."""

    off: str
    """Why its replicas are stopped and not parked, "" if they are parked."""
    wake_ms: float | None
    """Milliseconds until a parked replica serves, as its trial measured; null without a trial that
    has shown it."""
    parked: list[ParkedRow]
    """Its replicas that sleep."""


class FunctionRow(msgspec.Struct, kw_only=True):
    """A function with its state. `oip_name`: its name at /v2, "" for its own. `phase`: that of a
    waking function; `awaited`: what the readiness probes of its server meet, and for how long, null
    for the first seconds. `rate` covers the last ten seconds, the quantiles the last minute; null
    means unknown.
    `reserved_user`: which reserved user id the server of its image may have, "" for none. `golden`:
    the worst verdict of its replicas' golden samples. `park`: null for a function without the table
    [park]."""

    name: str
    oip_name: str
    revision: str
    engine: Engine
    state: PoolState
    reason: str
    phase: str | None
    awaited: str | None
    ready: int
    wanted: int
    held: int
    in_flight: int
    rate: float
    p50_ms: float | None
    p95_ms: float | None
    first_byte_p50_ms: float | None
    first_byte_p95_ms: float | None
    min: int
    max: int
    idle_s: float
    labels: dict[str, str]
    devices: list[str]
    since_s: float
    sleeps_at_s: float | None
    cold_start_ms: float | None
    ready_in_ms: int | None
    created_s: float
    build: BuildRow | None
    reserved_user: str
    golden: SampleVerdict
    trouble: str
    park: ParkRow | None


class Quantiles(msgspec.Struct):
    """Median and 90th percentile."""

    p50_ms: float
    p90_ms: float


class ColdStartTimes(msgspec.Struct):
    """Durations of cold starts in one way: `standby` says whether by a standby."""

    device_kind: str
    standby: bool
    samples: int
    total: Quantiles
    phases: dict[str, Quantiles]


class Server(msgspec.Struct):
    """Settings of a server. `env` has the names of its variables, without their values."""

    command: list[str]
    env: list[str]
    port: int
    ready: str
    network: Network
    start_s: float
    stop_grace_s: float
    samples: list[SampleRequest]
    paths: PathRules
    image: ServerImage | None
    user: str
    capabilities: list[str]
    writable: dict[str, int]
    shm_mib: int
    stop_signal: str
    mounts: list[Mount]
    secrets: dict[str, str]
    origins: list[str]
    fields: list[str]
    host: str
    found_host: str
    api: ModelApi | None
    python: PythonSettings | None
    park: ParkSettings | None


class RevisionRow(msgspec.Struct, kw_only=True):
    """A revision. `compilation`: how its model is compiled, null if it is not. `oip_version`: its
    version at /v2, "" for its number. `traffic`: plain calls go to it. `size` in bytes. `server`,
    `why_not_golden` ("" if it has a golden sample) and `park_hint` (the table [park] that would fit
    it, "" for none) only of server functions, `predict` only of Python functions."""

    number: int
    oip_version: str
    traffic: bool
    bundle: str
    engine: Engine
    compilation: Compilation | None
    model: str
    handler: str
    size: int
    created_s: float
    signature: Signature
    profile: Profile | None
    batch_max: int
    batching: str
    predict: str | UnsetType = UNSET
    server: Server | UnsetType = UNSET
    why_not_golden: str | UnsetType = UNSET
    park_hint: str | UnsetType = UNSET


class FunctionDetail(FunctionRow, kw_only=True):
    """A function with all details. `previous`: the revision that a rollback returns to. `builds`:
    those of its compiled models by type of device; `build`: one that is not done, if any.
    `precision`: candidates that the trial of the revision with the
    traffic measured, null without any. `server` and `exchange` only of server functions; of these
    `predict`, `form`, `schema` and `no_schema` only of Python functions, as in `GET /fn/NAME`.
    `neighbours`: what a replica on several GPUs means for other functions, "" for one device."""

    build: BuildDetail | None
    builds: list[BuildDetail]
    limits: Limits
    spread: bool
    file_hosts: int
    aliases: list[str]
    signature: Signature
    content_types: list[str]
    inputs: dict[str, InputRule]
    output: OutputRule
    batching: Batching
    device: DeviceNeed
    precision: PrecisionReport | None
    sample: Literal["manifest", "zeros"]
    revisions: list[RevisionRow]
    previous: int | None
    cold_starts: list[ColdStartTimes]
    example: str
    neighbours: str
    predict: str | UnsetType = UNSET
    form: PredictForm | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType | None = UNSET
    no_schema: str | UnsetType = UNSET
    server: Server | UnsetType = UNSET
    exchange: ExchangeLimits | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    """Whether other users of a cluster may take the place of its replicas."""


class Scaled(msgspec.Struct):
    """The scaling after a change. `warnings`: whether it can be kept, and what cannot start."""

    name: str
    min: int
    max: int
    idle_s: float
    spread: bool
    file_hosts: int
    warnings: list[str]
    preemptible: bool | UnsetType = UNSET


class ConnectedClient(msgspec.Struct):
    """An open exchange, or a WebSocket that was closed at `since_s` because its replica stopped.
    `counts`: it keeps the function awake, or kept it awake."""

    key: str
    note: str
    kind: Literal["websocket", "events", "request"]
    since_s: float
    path: str
    counts: bool


class ConnectionCounts(msgspec.Struct):
    """Open exchanges that keep the function awake, and those that do not."""

    counting: int
    free: int


class Exchanges(msgspec.Struct, kw_only=True):
    """Who is connected to a server function. `closed`: WebSockets that were closed because their
    replica stopped. `awake`: in words whether that keeps it awake. `last`: the exchange that ended
    last, at `since_s`; as long as no other is open, the function is awake because of it."""

    connected: list[ConnectedClient] | UnsetType = UNSET
    closed: list[ConnectedClient] | UnsetType = UNSET
    connections: ConnectionCounts | UnsetType = UNSET
    awake: str | UnsetType = UNSET
    last: ConnectedClient | UnsetType | None = UNSET


class Why(Exchanges, kw_only=True):
    """State and reason of a function. "not_deployed": its first deploy runs, has failed or was
    cancelled. `operation`: the one that runs, or that first deploy. `kept_by`: functions whose
    `min` keeps the devices that it waits for. `phase`, `ready_in_ms` and `park` as in the list of
    functions. `connected` and what follows only of server functions. `last`: the exchange that
    ended last, at `since_s`; as long as no other is open, the function is awake because of it."""

    state: Literal[PoolState, "not_deployed"]
    reason: str
    phase: str | None
    ready_in_ms: int | None
    park: ParkRow | None
    blocked: str
    kept_by: list[str]
    batching: str
    since_s: float
    sleeps_at_s: float | None
    decisions: list[Decision]
    cold_starts: list[ColdStart]
    intervals: list[StateInterval]
    operation: OperationRow | None


class ReplicaLog(msgspec.Struct):
    """Lines of a replica's log, with line breaks between them: the last ones, and in a stream of
    events those that follow."""

    replica: str
    text: str


class FailureRow(msgspec.Struct):
    """Requests that failed alike within a second."""

    at_s: float
    code: str
    detail: str
    revision: str
    replica: str
    request_id: str
    count: int


class Warmed(msgspec.Struct):
    """A replica is ready. `idle_s`: how long it stays without requests."""

    name: str
    revision: str
    was_warm: bool
    took_ms: float
    idle_s: float


class Prepares(msgspec.Struct):
    """Answer to a request for a compiled model. `build` is None for a model that is not compiled,
    which is measured again."""

    name: str
    revision: str
    build: BuildDetail | None
    builds: list[BuildDetail]


class Slept(msgspec.Struct):
    """Replicas that were asked to stop, and those that stay, with the `reasons` in words. `open`:
    calls or exchanges that are held or in flight."""

    name: str
    asked: int
    stay: int
    min: int
    open: int
    reasons: list[str]


class Parked(msgspec.Struct):
    """Replicas that were asked to sleep."""

    name: str
    asked: int
    """Those that were asked."""
    parked: int
    """Those that sleep now, also from before."""
    stay: int
    """Those that go on serving."""
    min: int
    """Replicas that the function keeps awake."""
    open: int
    """Calls that are held or in flight."""
    took_ms: float
    """Milliseconds of the wait for the sleep."""
    wake_ms: float | None
    """Milliseconds until a parked replica serves."""
    reasons: list[str]
    """Why replicas stay or ended, in words."""


class TicketRow(msgspec.Struct):
    """A ticket, and the address without its scheme that takes it, for `expires_s` seconds."""

    ticket: str
    address: str
    expires_s: float
