"""Frozen data classes: functions, revisions, bundles, profiles, keys, operations, history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from registry.builds import Compilation, DeviceType
from registry.key_form import KeyPriority
from runtime_image.contract.contention import ContentionState
from runtime_image.contract.model import EqualAxes, InputRule, OutputRule, Preparation
from runtime_image.contract.precision import Optimisation, PrecisionReport
from runtime_image.contract.samples import GoldenPlan, GoldenSample, SampleRequest
from runtime_image.contract.server import Network
from runtime_image.contract.signature import Signature

NAMESPACE = "default"
"""The only namespace at present; nevertheless part of every key."""
LOCAL_HOST = "local"
"""Name of the machine that the server runs on."""
EXCHANGE_MAX_S = 600.0
"""Max seconds of an exchange where a function sets none; WebSockets then have no limit."""
HOSTS_MAX = 100
"""Max hosts beside the local one."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that runs replicas, as the store keeps it. The local machine is not stored.

    `address` is `[USER@]HOST[:PORT]`, a login by SSH. `labels` are the operator's; functions name
    those that their host must have. `host_key` is the public key that the host must show, as a line
    of OpenSSH (`ssh-ed25519 AAAA...`), "" for the keys of known_hosts. `identity` is the file of a
    private key on the server's machine, "" for the agent's keys and those of ~/.ssh/config.
    `engine` is the socket of the container engine there. `cpu_slots` is the number of CPU slots, 0
    for one per core. `gpus` is as FN_GPUS. `files_mib` limits the cache of model files there.
    `is_draining`: no replicas are placed there.
    """

    name: str
    address: str
    labels: dict[str, str] = field(default_factory=dict)
    host_key: str = ""
    identity: str = ""
    engine: str = "/var/run/docker.sock"
    cpu_slots: int = 0
    gpus: str = "all"
    files_mib: int = 51_200
    is_draining: bool = False
    added_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """Number of replicas. `idle_s`: seconds without a request before a replica may be stopped.

    `spread`: replicas prefer different hosts. `file_hosts`: number of hosts that keep the files
    ahead of need.
    """

    min: int = 0
    max: int = 1
    idle_s: float = 300.0
    spread: bool = True
    file_hosts: int = 1


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Limits of a server function's exchanges. Times in seconds.

    `concurrency`: exchanges at once per replica, over all gateways. `first_byte_s` counts from the
    request's sending to the answer's first byte, `stall_s` between two bytes (0 = no limit),
    `max_s` the whole exchange; of WebSockets only if it is not the default. `drain_s`: time that
    open exchanges have when their replica stops.
    `websockets`: "ignore" lets WebSockets take no slot and keep no replica awake.
    """

    concurrency: int = 32
    first_byte_s: float = 300.0
    stall_s: float = 0.0
    max_s: float = EXCHANGE_MAX_S
    drain_s: float = EXCHANGE_MAX_S
    websockets: Literal["count", "ignore"] = "count"

    @property
    def websocket_max_s(self) -> float:
        """Max seconds of a WebSocket, infinity for no limit."""
        return math.inf if self.max_s == EXCHANGE_MAX_S else self.max_s


@dataclass(frozen=True, slots=True)
class Health:
    """How the replicas of a server function are watched while they serve."""

    sample_every_s: float = 0.0
    """Seconds between two asks of an idle replica's golden sample, 0 for none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Per-function limits.

    `retry`: "auto" reruns a request that had started, unless the function has a handler; "always"
    and "never" apply regardless.
    """

    timeout_s: float = 60.0
    wait_s: float = 55.0
    queue: int = 2000
    body_mib: int = 64
    retry: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """Requirements of a replica. `memory_mib` is its memory cap, 0 for the driver's default. `host`
    has the labels that its host must have."""

    kind: Literal["any", "cpu", "cuda"] = "any"
    memory_mib: int = 0
    share: float = 1.0
    host: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batching:
    """Batching settings.

    `auto` batches if the deploy proved that it is safe, `always` also if no comparison refuted it.
    `max_size` 0 uses the profile's size.
    """

    mode: Literal["auto", "always", "off"] = "auto"
    max_size: int = 0
    wait_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle: plain relative path, size in bytes, sha256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files of one revision, sorted by path; `digest` is the sha256 of that list."""

    digest: str
    files: tuple[BundleFile, ...]

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Function:
    """A name that clients call. `revision` is the number of the revision that serves calls.

    Changes of a function's settings do not create a revision. `exchange` is set only for server
    functions, of which only those in Python use `limits.timeout_s` and `limits.body_mib`. `aliases`
    are further names of its model at /v1, each of one function alone; a deploy or a rollback keeps
    them.
    `oip_name` is its model's name in the Open Inference Protocol, "" for the function's own.
    """

    name: str
    revision: int
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = NAMESPACE
    created_s: float = 0.0
    """Unix seconds."""
    exchange: ExchangeLimits | None = None
    aliases: tuple[str, ...] = ()
    oip_name: str = ""
    health: Health = Health()


@dataclass(frozen=True, slots=True)
class PathRules:
    """Which requests of a server function wake it, take no slot, or are denied.

    Each rule is a path pattern ("/static/*"), or a method and one ("POST /v1/*"). An empty `wake`
    means that every request wakes.
    """

    wake: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerImage:
    """The container image of a server, pinned by a deploy.

    `reference` is the image as the manifest names it. `id` is the engine's id of what it was then,
    `digest` the registry's "REPOSITORY@sha256:..." for it, "" for an image that was built here.
    Both are "" until the deploy has found or pulled the image. `user` is the USER that the image
    names, "" for none; it follows from the id. None: the deploy was one of an earlier release.
    """

    reference: str
    id: str = ""
    digest: str = ""
    user: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host that a server sees at the absolute path `target`."""

    name: str
    source: str
    target: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True)
class ModelApi:
    """The [openai] table of a revision: how requests to the gateway's /v1 reach its server.

    `served_model` is the model's name at the server, "" for the one that the client sends. `base`
    is the path below which the server has the endpoints. `usage`: "ask" adds
    `stream_options.include_usage` to streams whose usage is only sent on request, and takes the
    additional event out again. `body_mib` bounds a request's body. `comment_after_s`: seconds
    after which a waiting stream gets its first comment, 0 for never. `on_disconnect`: "drain" lets
    the server finish an answer whose client has left. `upstream_key` names a secret that the
    server gets as a bearer key, "" for none.
    """

    served_model: str = ""
    base: str = "/v1"
    usage: Literal["ask", "as_sent"] = "ask"
    body_mib: int = 32
    comment_after_s: float = 20.0
    on_disconnect: Literal["abort", "drain"] = "abort"
    upstream_key: str = ""


HOST_BY_TRIAL: Final = "auto"
HOST_OF_CLIENT: Final = "client"
HOST_OF_LOOPBACK: Final = "loopback"


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """The [python] table of a revision, whose server has packages of its own: fngate's, which runs
    `Revision.handler`, or a command if there is no handler."""

    version: str = ""
    """Python that it wants, 3.12 or 3.12.1; "" for the first one that fits."""
    needs: str = ""
    """File that names the packages, "" for the one that the folder has."""
    kind: str = ""
    """Kind of results, "" by their type."""
    content_type: str = ""
    """Content-Type of results of kind text and bytes, "" for the kind's own."""
    batch_max: int = 0
    """Max calls that `predict` gets as lists; 0 for one call, not in a list."""
    page: str = ""
    """Bundle path of the HTML file that `GET /` answers, "" for none."""
    lock: str = ""
    """Digest of the stored lock of its packages, "" until the deploy has it."""
    environment: str = ""
    """Name of the folder of its packages, "" until the deploy has the lock."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The [server] table of a revision; fields as in `ServerSpec`.

    With an `image`, `command` replaces the arguments that the image names, if it is not empty.
    `user` is "UID" or "UID:GID", "" for the image's. `writable` maps folders to MiB of memory
    that files in them may take. `secrets` maps variables to names of stored secrets. `origins` are
    the web origins whose pages may call the function. `fields` are lower-case names with `_` of
    header fields that it gets. `host` is the Host that it sees: HOST_OF_CLIENT, HOST_OF_LOOPBACK
    for its own address, a fixed one, or HOST_BY_TRIAL for `found_host`, one of the first two. `api`
    is set if it answers at /v1. `python` is set if it has Python packages of its own; with a
    handler `command` stands for what a start makes of it.
    """

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    ready: str = ""
    network: Network = "none"
    start_s: float = 600.0
    stop_grace_s: float = 10.0
    samples: tuple[SampleRequest, ...] = ()
    paths: PathRules = field(default_factory=PathRules)
    image: ServerImage | None = None
    user: str = ""
    capabilities: tuple[str, ...] = ()
    writable: dict[str, int] = field(default_factory=dict)
    shm_mib: int = 64
    stop_signal: str = ""
    mounts: tuple[Mount, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    host: str = HOST_BY_TRIAL
    found_host: str = HOST_OF_CLIENT
    api: ModelApi | None = None
    python: PythonSettings | None = None

    @property
    def wants_golden(self) -> bool:
        """Whether a trial is to learn a golden sample: from the sample that the manifest marks, or
        from the API at /v1. A server that reaches other machines may pass requests on, to somebody
        who counts them, so its API is not asked."""
        if any(one.golden for one in self.samples):
            return True
        api = self.api
        return api is not None and not api.upstream_key and self.network == "none"

    @property
    def seen_host(self) -> str:
        """The Host that the server sees: HOST_OF_CLIENT, HOST_OF_LOOPBACK or a fixed one."""
        return self.found_host if self.host == HOST_BY_TRIAL else self.host


PredictForm = Literal["def", "async def", "generator", "async generator"]


@dataclass(frozen=True, slots=True)
class Interface:
    """How a Python function is called, as its own server said in the trial; `registry.interface`
    has checked it."""

    predict: str = ""
    """Signature of `predict` as in Python: "predict(text: str, times: int = 1)"."""
    form: PredictForm = "def"
    content_types: tuple[str, ...] = ()
    """Content types that calls may have, in words."""
    tensors: Signature | None = None
    """Signature of inputs that are tensors, or one raw body; None for any others."""
    schema: str = ""
    """JSON Schemas of `inputs` and `output` with their `$defs`, as the text of a JSON object; "" if
    there is none."""
    why_not: str = ""
    """Why there is no schema."""
    imports: tuple[tuple[str, float], ...] = ()
    """Packages that the handler imports, with milliseconds, those that took longest first."""

    @property
    def is_stream(self) -> bool:
        """Whether answers are streams."""
        return self.form.endswith("generator")


@dataclass(frozen=True, slots=True)
class Revision:
    """Immutable definition of what runs. `model` and `handler` are bundle paths, "" for none.

    `server` is set only for server functions. `oip_version` is its version in the Open Inference
    Protocol, digits; "" for its number. `optimise` has the manifest's [optimise], None for its
    defaults. `compilation` is None unless the model is compiled. `interface` is set by the trial of
    a Python function.
    """

    name: str
    number: int
    bundle: str
    signature: Signature
    engine: Literal["onnx", "python", "server"] = "onnx"
    model: str = ""
    handler: str = ""
    inputs: dict[str, InputRule] = field(default_factory=dict)
    output: OutputRule = field(default_factory=OutputRule)
    batching: Batching = field(default_factory=Batching)
    device: DeviceNeed = field(default_factory=DeviceNeed)
    sample: dict[str, Any] = field(default_factory=dict)
    namespace: str = NAMESPACE
    created_s: float = 0.0
    server: ServerSettings | None = None
    oip_version: str = ""
    compilation: Compilation | None = None
    optimise: Optimisation | None = None
    interface: Interface | None = None

    @property
    def is_python(self) -> bool:
        """Whether it is a Python function: fngate's own server answers its calls."""
        return self.server is not None and self.server.python is not None and bool(self.handler)

    @property
    def ref(self) -> str:
        """Reference in user-facing text: digits@3."""
        return f"{self.name}@{self.number}"

    @property
    def key(self) -> str:
        """Key of its pool in messages and metrics: default/digits@3."""
        return pool_key(self.namespace, self.name, self.number)


def pool_key(namespace: str, name: str, number: int) -> str:
    """Return the key of a revision's pool, as used in messages and metrics."""
    return f"{namespace}/{name}@{number}"


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Cost of one way to create a session.

    Load and first run in milliseconds, and CPU milliseconds per run by rows.
    """

    load_ms: float
    first_ms: float
    cpu_ms: dict[int, float]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Result of preparing a model during deploy.

    `files` are laid out beside those of its bundle. The session times compare the original and the
    prepared model. A bundle may contain several models: this belongs to the one at `model`.
    """

    model: str
    preparation: Preparation
    files: tuple[BundleFile, ...]
    original: SessionTimes
    quick: SessionTimes
    fast: SessionTimes | None = None

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Optimised:
    """Result of a trial with candidates of other precision.

    `file` is the chosen candidate, laid out beside the files of the bundle and served instead of
    the model at `model`; None if the original was chosen. `table` has the measurements.
    """

    model: str
    table: PrecisionReport
    file: BundleFile | None = None


@dataclass(frozen=True, slots=True)
class Contention:
    """Whether other work had the CPUs while a profile was measured."""

    state: ContentionState = "unknown"
    attempts: int = 0
    """Measurements since the deploy's, which repeat it."""
    again_s: float = 0.0
    """Unix time from which an idle machine measures again; 0 if it does not."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden sample that a trial has learnt. It holds for replicas on devices of the same type,
    of revisions for which it would be learnt in the same way."""

    sample: GoldenSample
    plan: GoldenPlan
    device: DeviceType


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of a deploy for (bundle, engine, device kind). Milliseconds and MiB.

    `latency_ms` is per run, by rows. `batch_max` is the knee: more rows gain nothing. `memory_mib`
    includes both sessions if `prepared` has two. `why_not_prepared` is "" if the model is prepared,
    or if preparation was not tried. `optimised` is None if the model's own precision was wanted;
    else all measurements are those of the chosen candidate.

    `batchable`, `why_not`, `operator`, `equal_axes` and `compared` are as in the trial's `Report`,
    by rules of version `proof` (0: before rules had versions) for the bundle's file `model`.
    `refuted_at_runtime` is what a batched run of a replica showed, "" for nothing. It is kept when
    the model is tried again.
    """

    bundle: str
    engine: str
    device_kind: str
    load_ms: float
    memory_mib: float
    latency_ms: dict[int, float]
    batchable: bool
    why_not: str = ""
    batch_max: int = 1
    profiled: bool = True
    note: str = ""
    prepared: Prepared | None = None
    why_not_prepared: str = ""
    proof: int = 0
    model: str = ""
    operator: str = ""
    equal_axes: EqualAxes = ()
    compared: bool = False
    refuted_at_runtime: str = ""
    optimised: Optimised | None = None
    contention: Contention = Contention()
    golden: Golden | None = None
    """Of a server's trial: its golden sample."""
    why_not_golden: str = ""
    """Why the trial of a server that was to have one learnt none."""


@dataclass(frozen=True, slots=True)
class Key:
    """An access key; only its sha256 (hex) is stored.

    Scopes: invoke[:name], read, deploy, admin. `priority`: the highest one that its calls may have.
    """

    id: str
    sha256: str
    scopes: tuple[str, ...]
    note: str = ""
    created_s: float = 0.0
    priority: KeyPriority = KeyPriority.NORMAL


OperationState = Literal["running", "done", "failed", "cancelled"]
OperationKind = Literal["deploy", "rollback"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Long-running work that survives a restart. `request` contains everything to run it again.

    `party` is the id of the key that asked for it, `scopes` what that key allowed; those of earlier
    releases count as deploy.
    """

    id: str
    kind: OperationKind
    name: str
    request: dict[str, Any]
    scopes: tuple[str, ...] = ("deploy",)
    state: OperationState = "running"
    phase: str = "queued"
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    namespace: str = NAMESPACE
    created_s: float = 0.0
    ended_s: float = 0.0
    party: str = ""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One cold start with its receipt. `phases` in milliseconds; `at_s` in Unix seconds. `host` is
    the host of its device, `session` the session that the replica serves with, "" if unknown."""

    namespace: str
    name: str
    number: int
    replica: str
    device_kind: str
    at_s: float
    total_ms: float
    phases: dict[str, float]
    outcome: str = "ready"
    host: str = LOCAL_HOST
    session: str = ""


@dataclass(frozen=True, slots=True)
class StateInterval:
    """A pool was in `state` from `from_s` to `to_s` (Unix seconds), for `reason`."""

    namespace: str
    name: str
    number: int
    state: str
    reason: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """Use of one device by a revision's replicas in one minute from `minute_s` (Unix seconds).

    In device-seconds: `waking_s` starting and loading, `busy_s` running the model, `idle_s` ready
    and not running. Several records of one minute add up. Standbys on a GPU belong to no function:
    their name is "" and their number 0. So does the time in which a device has no holder.

    `held_s` are the device-seconds that the replicas are charged with: several holders of a device
    split each of its seconds, so that all records of a device add up to the time that passed.
    `joules` are split likewise, 0 for a device without an energy counter.
    """

    namespace: str
    name: str
    number: int
    device: str
    minute_s: int
    waking_s: float = 0.0
    idle_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    joules: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What a device is, as of `at_s` (Unix seconds); `name` is its id.

    `model` is the name of a GPU as its driver reports it, "" for a CPU slot. `part` is less than 1
    for a slice of a GPU: its part of the GPU's memory.
    """

    name: str
    kind: str
    model: str
    part: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that arrived for a function in the minute starting at `minute_s` (Unix seconds)."""

    namespace: str
    name: str
    minute_s: int
    count: int
