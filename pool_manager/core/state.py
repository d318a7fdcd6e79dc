"""State table of a replica's life, and the records that decisions are based on.

Two rules:

1. Only `advance` changes a replica's state, and only along TRANSITIONS. A pair that is not in the
   table is a defect of this program. No process, driver or gateway can cause it: their messages are
   checked against the state first, and dropped if they crossed a state change.
2. A device is free only when its replica is STOPPED, that is, when the driver has proved that
   nothing of the process is left, or PARKED, which the manager has proved: then it is charged the
   residue alone. In every other state the device is charged in full; on a CPU its memory is, and
   a slot while it runs (`slots`).

The states:

STARTING    The process is launched, or its start waits in the start queue (`start_queue`; that
            wait does not count against the time limit). It has not connected yet.
STANDBY     The replica has connected (HELLO) and has no model. A function's replica is in this
            state briefly, a standby for hours. Until it is bound, that is their only difference.
LOADING     The replica has received the model to load. A trial is verified in this state, a build
            compiles in it.
READY       Gateways send requests to the replica.
DRAINING    The replica was asked to stop and finishes its requests. If it may refuse (`if_idle`),
            it still serves: only the replica sees every gateway, so only it knows that it is idle.
PARKING     A server was asked to sleep instead of being stopped (`park`). It refuses if it was
            called.
PROVING     Its engine says that it sleeps. The manager proves that its devices are free.
PARKED      Its engine sleeps, proved. It is charged its residue and memory of its host.
UNPARKING   Its engine wakes. Its devices are charged in full again, from before the command.
VERIFYING   Its engine is awake and answers its golden sample. Only if that is right it is READY.
RELEASING   The driver kills what is left and removes the folders, and retries until it succeeds. As
            long as it fails, the device stays charged: a leaked process may hold its memory.
STOPPED     Nothing is left. The record is removed in the same step, so no query shows this state.

`lost` is the one step for every way in which a process ends or is given up: exit, crash, hang,
refused load, a device that fell off the bus. There is no state "failed": failures (back-off, last
error) belong to the pool, because the next replica starts under them.

`drain` is never used before LOADING, although the table would allow it for STANDBY: a replica
without a model has nothing to finish and is released at once (`ReplicaLifecycle.drain`). So is a
build in any state, and a server whose engine sleeps or wakes. DRAINING can be left in three ways.
`not idle`, back to READY, is the only step backwards, also from PARKING; the plans for the device
are then made anew. `asleep` ends a soft drain whose server sleeps instead of ending. A replica that
may refuse and then receives an unconditional drain takes no step: its state stays DRAINING, and
`if_idle` becomes False.

A busy server is drained *softly* for another pool, the `claimant` (`ReplicaLifecycle.quiesce`): it
takes no new exchanges and finishes the open ones. It is still listed, because gateways keep their
links to it: when the claimant no longer needs the room, the drain is revoked (`is_returning`), and
`not idle` leads back to READY.

Deadlines are not part of the table. A state may last for `state_limit_s`. A Tick after that
treats an overdue state like any other loss, except for a drain and a release.

The state of a replica on another host is the last known one; its `Contact` says how reliable that
is. Only a KNOWN replica is listed, used, drained or evicted:

KNOWN        Its control link works. Every replica of the local host, and every one that was
             launched or has greeted since its host is up.
EXPECTED     Its host is up again and it runs, but it has not greeted yet. It has a time limit.
JOINING      As EXPECTED, but its host has not answered since this server started.
UNREACHABLE  Its host cannot be reached: it may run and serve, or not. It has no time limit.
GONE         Its host was unreachable for so long that it takes no calls any more. It is RELEASING
             until the host is up again: its release cannot be commanded before.

A replica that may run must not be doubled if a call may not run twice (`Pool.is_exclusive`):
such a pool counts it until it is GONE or its end is proved (`Pool.counts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, Literal, NamedTuple

from pool_manager.core.health.liveness import Cause, Hang, Watch
from pool_manager.core.starts import EngineStep, Fetching, Probing
from registry.builds import DeviceType
from registry.model.hosts import LOCAL_HOST, Ability
from registry.model.parks import PARK_S
from runtime_image.contract import model
from runtime_image.contract.gpus import Link
from runtime_image.contract.health import Learnt
from runtime_image.contract.samples import GOLDEN_TRIAL_S
from runtime_image.contract.server import QUIESCE_S

START_S = 60.0
STARTING_MAX_S: Final = 600.0
"""Longest start, from its end in the start queue, while the engine of its host reports progress."""
QUEUE_S = 600.0
"""Limit of a start's wait in the start queue. START_S counts from the end of that wait."""
GREETING_AFTER_ADOPTION_S = 10.0
LOAD_MIN_S = 60.0
LOAD_FACTOR = 10.0
LOAD_S_PER_GIB = 20.0
SERVER_MARGIN_S = 30.0
"""Added to `start_s`, within which the sidecar itself gives a server up and says why."""
VERIFICATION_S = 60.0
"""Limit of a trial's verification: the analysis of rows (30 s at most) and the comparison of runs,
which takes some seconds for each of up to three sessions. For a server: of its sample requests,
beside GOLDEN_TRIAL_S for its golden sample."""
BUILD_S = 3600.0
"""Limit of a compilation with its comparison of outputs; a load comes before, transfers after."""
EXCESS_S = 600.0
"""Added to the limit of a build's state: the fetch of its files ends before, and says why."""
DRAIN_S = 30.0
TERM_S = 5.0
"""Seconds between TERM and KILL. A server has its `stop_grace_s` in addition."""
RESUME_S = 30.0
"""Limit of the answer to a revoked soft drain."""
RELEASE_RETRY_S = 5.0
QUIET_S = 5.0
"""A server that is replaced ends once nothing has moved on it for this long."""

LIMIT_MIN_S: Final = 20.0
LIMIT_FACTOR: Final = 10.0
"""A sleep, a wake or a verification may take LIMIT_FACTOR times what it took in the trial, at least
LIMIT_MIN_S: limits of 1 to 2 s ended a third of the healthy engines of a busy machine."""
PROOF_S: Final = 20.0
"""Limit of the proof that a sleeping engine has freed its devices."""


class State(StrEnum):
    """The state of a replica."""

    STARTING = "starting"
    STANDBY = "standby"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    PARKING = "parking"
    PROVING = "proving"
    PARKED = "parked"
    UNPARKING = "unparking"
    VERIFYING = "verifying"
    RELEASING = "releasing"
    STOPPED = "stopped"


DeviceState = Literal["free", "taken", "quarantined", "cordoned"]


class Step(StrEnum):
    """A step from one state of a replica to the next."""

    GREETED = "greeted"
    BOUND = "bound"
    LOADED = "loaded"
    DRAINED = "drain"
    NOT_IDLE = "not idle"
    PARK = "park"
    ASLEEP = "asleep"
    PROVED = "proved"
    UNPARK = "unpark"
    AWAKE = "awake"
    VERIFIED = "verified"
    FOUND_PARKING = "found parking"
    FOUND_ASLEEP = "found asleep"
    FOUND_WAKING = "found waking"
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
        Step.FOUND_PARKING: State.PARKING,
        Step.FOUND_ASLEEP: State.PROVING,
        Step.FOUND_WAKING: State.UNPARKING,
        Step.DRAINED: State.DRAINING,
        Step.LOST: State.RELEASING,
    },
    State.READY: {
        Step.PARK: State.PARKING,
        Step.DRAINED: State.DRAINING,
        Step.LOST: State.RELEASING,
    },
    State.DRAINING: {
        Step.NOT_IDLE: State.READY,
        Step.ASLEEP: State.PROVING,
        Step.LOST: State.RELEASING,
    },
    State.PARKING: {
        Step.NOT_IDLE: State.READY,
        Step.ASLEEP: State.PROVING,
        Step.DRAINED: State.DRAINING,
        Step.LOST: State.RELEASING,
    },
    State.PROVING: {Step.PROVED: State.PARKED, Step.LOST: State.RELEASING},
    State.PARKED: {Step.UNPARK: State.UNPARKING, Step.LOST: State.RELEASING},
    State.UNPARKING: {Step.AWAKE: State.VERIFYING, Step.LOST: State.RELEASING},
    State.VERIFYING: {Step.VERIFIED: State.READY, Step.LOST: State.RELEASING},
    State.RELEASING: {Step.RELEASED: State.STOPPED},
    State.STOPPED: {},
}


UNREADY: Final = (State.STARTING, State.STANDBY, State.LOADING)
"""Before the first READY."""
COMING: Final = (*UNREADY, State.UNPARKING, State.VERIFYING)
"""On the way to READY."""
FALLING_ASLEEP: Final = (State.PARKING, State.PROVING)
RESTING: Final = (*FALLING_ASLEEP, State.PARKED)
ABSENT: Final = (State.PARKED, State.RELEASING)
"""Neither serving nor about to serve."""
MAY_HAVE_OPEN: Final = (State.LOADING, State.READY, State.DRAINING, State.PARKING)
"""Calls may be open, or a load or a sleep in progress."""


class ImpossibleStep(Exception):
    """The table does not allow this step: a defect of the caller."""


def advance(state: State, step: Step) -> State:
    """Return the state after `step`. Raises ImpossibleStep if the table has no such row."""
    try:
        return TRANSITIONS[state][step]
    except KeyError:
        raise ImpossibleStep(f"{state} -> {step}") from None


class Contact(StrEnum):
    """How well the state of a replica is known."""

    KNOWN = "known"
    EXPECTED = "expected"
    JOINING = "joining"
    UNREACHABLE = "unreachable"
    GONE = "gone"


Role = Literal["serve", "trial", "build", "standby"]


@dataclass(frozen=True, slots=True)
class Device:
    """A CPU slot or a GPU of a host. `kind` is "cpu" or "cuda".

    `memory_mib` is the size of its memory bank, 0 if memory is not accounted. Devices that share
    one memory, as CPU slots do, have the same `bank`. Ids and banks of all hosts are different:
    those of any but the local host begin with its name and a slash. `model` is all that is known of
    a GPU, equal for equal ones; "" for CPU slots, and for GPUs that have not been read yet.
    """

    id: str
    kind: str
    memory_mib: float = 0.0
    bank: str = ""
    host: str = LOCAL_HOST
    model: str = ""
    pci_bus: str = ""
    """PCI address of a GPU, which orders those of a host; "" if that is not known."""
    is_slice: bool = False
    """Whether it is a MIG slice."""
    is_exclusive: bool = False
    """Whether it takes one replica at a time, whatever share that needs."""
    links: tuple[Link, ...] = ()
    """Its connections to other GPUs of its host, each known from one of both at least; the two are
    named by their device ids."""

    def __post_init__(self) -> None:
        if not self.bank:
            object.__setattr__(self, "bank", self.id)

    @property
    def type(self) -> DeviceType:
        """Its host and model."""
        return DeviceType(self.host, self.model)


class Cordon(NamedTuple):
    """Why a device gets no replicas, and whether it is gone (its replicas are then useless)."""

    reason: str
    is_gone: bool


class Refusal(NamedTuple):
    """Why a device takes no new replica for a while, although nothing is wrong with it: the engine
    of its host has no place there, or has given it to others.

    Beside a cordon and not a kind of one: those that run there stay, a device may have both, and
    each ends for itself.
    """

    reason: str
    """In the engine's own words."""
    until_s: float
    """When it ends, in monotonic seconds."""


@dataclass(frozen=True, slots=True)
class ParkSpec:
    """What the trial of a revision has measured of a park that woke right."""

    sleep_s: float
    """Seconds of the engine's call to sleep, with its checks."""
    wake_s: float
    """Seconds of the engine's call to wake."""
    host_mib: float
    """MiB of host memory that it takes besides, at the peak of the sleep."""
    residue_mib: float
    """MiB that stay in use on the device with the most; charged on each of its devices."""
    verify_s: float = 0.0
    """Seconds of the golden sample."""
    park_s: float = PARK_S
    """Seconds after which a parked replica is stopped."""

    @property
    def return_s(self) -> float:
        """Seconds until a parked replica serves again."""
        return self.wake_s + self.verify_s


UNKNOWN: Final = ParkSpec(0.0, 0.0, 0.0, 0.0)
"""For the limits of a replica whose revision has lost its profile while it was parked."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The settings and measurements of one revision that decisions need.

    `function` is the namespace and name; `max` limits the replicas of all its revisions together.
    `target` is the number of requests that one replica takes at once. `load_s` is the measured load
    time, 0 if unknown. `memory_mib` is the measured memory of one replica. `share` is the part of a
    device that it needs, 1 for a whole device; `count` whole devices of one host if that is more
    than 1. `batches`: its replicas batch requests. A trial is a
    pool with one throw-away replica, and `trial_s` are the seconds that it has beyond other trials.
    A build is one, too; it has a whole device whatever its `share`, of the `device_type` if that is
    not None.

    `may_rerun`: calls that a replica had started may run again elsewhere. `labels` are those that
    its host must have. `spread`: its replicas prefer different hosts. `files` identifies its files
    in the caches of hosts (digest of the bundle); they have `bundle_bytes`, and `file_hosts` hosts
    besides the local one should have them ahead of need. `image` is the engine's id of its server's
    image, "" for none.

    `is_server`: its replicas are sidecars with an HTTP server, and `target` is their concurrency.
    Only then are the following used, in seconds: `start_s` is the limit of the server's start,
    `drain_s` the time that open exchanges have to end, `stop_grace_s` the server's between TERM and
    KILL, `sample_every_s` the interval at which idle replicas are asked their golden sample, 0 for
    never.
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
    count: int = 1
    memory_mib: float = 0.0
    batches: bool = True
    is_server: bool = False
    start_s: float = 600.0
    drain_s: float = 600.0
    stop_grace_s: float = 10.0
    sample_every_s: float = 0.0
    may_rerun: bool = True
    labels: tuple[tuple[str, str], ...] = ()
    ability: Ability | None = None
    """What its host must be able to run, None for a model, which every host runs."""
    spread: bool = True
    files: str = ""
    file_hosts: int = 1
    image: str = ""
    trial_s: float = 0.0
    device_type: DeviceType | None = None
    hang: Hang = "replace"
    """What happens to a server that does not work any more."""
    step_s: float = 900.0
    """Longest time in seconds in which a server that computes may show no progress."""
    trial_wait_s: float = inf
    """Seconds that a trial waits for room before it ends, or takes that of its own function."""
    evicts: bool = False
    """Whether a trial may take the device of another function that is being called."""
    park: ParkSpec | None = None
    """What its trial has measured of a park, None if its replicas are never parked."""

    @property
    def is_gang(self) -> bool:
        """Whether each of its replicas takes several whole devices. A build never does."""
        return self.count > 1 and self.role != "build"

    @property
    def uses_standbys(self) -> bool:
        """Whether a standby may become one of its replicas, which a build's never is."""
        return not (self.is_server or self.count > 1)


@dataclass(slots=True)
class Replica:
    """One replica as the manager sees it. Times are monotonic seconds.

    A standby belongs to a pool of standbys until it is assigned. `is_bound`: the process has
    received, or is about to receive, the model to load. `if_idle` marks a drain that the replica
    may refuse; `refused_s` is the time of its last refusal. `ready_s` is when it became READY.
    `deadline_s` is the time limit of the present state. `terminated`: TERM was sent. `batches`: it
    may batch requests, as far as is known. `claimant` marks a soft drain, or a pause: the
    pool that it makes room for. `is_revoked`: the soft drain was revoked, and the replica has not
    confirmed it yet.
    `has_greeted`: it has connected since its host was last unreachable. `may_run`: it was given up
    on another host without a proof of its end. `session`: the session that it serves with, by its
    name in the contract, "" while that is unknown; `not_compiled`: why that is not the compiled
    model that it was given. `extra_mib` are charged while it opens a second session,
    else it is None.
    """

    id: str
    pool: str
    devices: tuple[str, ...]
    """Ids of its devices on `host`; none of a standby for CPU slots."""
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
    claimant: str = ""
    is_revoked: bool = False
    sleeps_after: bool = False
    """Whether its soft drain ends with a sleep of its engine, not with its end."""
    host: str = LOCAL_HOST
    contact: Contact = Contact.KNOWN
    has_greeted: bool = False
    may_run: bool = False
    session: str = ""
    not_compiled: str = ""
    extra_mib: float | None = None
    watch: Watch | None = None
    """The clocks of a server, None before its first reading."""
    given: int = 0
    """Bytes that the server had sent at its last reading."""
    condemned: Cause | None = None
    """Why it is being replaced, None if it is not."""
    reported: Cause | None = None
    """Cause of the trouble that was noted last."""
    trouble: str = ""
    """Why it counts as not answering, "" if it answers."""
    is_kept_wrong: bool = False
    """Whether it answered its golden sample wrong, and it is noted why it is not replaced."""
    is_paused: bool = False
    """Whether it is READY on a CPU and gets no new calls: other replicas run on all slots of its
    host, or it gives its slot to the pool `claimant`."""
    slot_s: float = 0.0
    """When it got its CPU slot, the last one if it has none; 0 if it never had one while READY."""
    learnt: Learnt | None = None
    """What its sidecar keeps of the silences of its revision."""
    learnt_due_s: float = 0.0
    """When its sidecar may be sent that again."""

    @property
    def first_device(self) -> str:
        """Its first device, "" without one: the device of a standby or a build, which never have
        several, and the one that stands for all where one is shown."""
        return self.devices[0] if self.devices else ""

    resumes: int = 0
    """Number of Resume commands that it has not answered (NotIdle)."""
    has_slept: bool = False
    """Whether its engine has slept: it may keep the memory of its host that it took."""
    is_unparkable: bool = False
    """Whether nothing can park it, as of `Loaded`."""
    woken_s: float = 0.0
    """When its wake was commanded."""
    successor: str = ""
    """Id of the replica that was started because the devices of this one, PARKED, stay busy; this
    one ends once that is READY."""

    def is_hung(self, now: float) -> bool:
        """Whether it is being replaced, and nothing has moved on it for QUIET_S."""
        is_leaving = self.state is State.DRAINING and self.condemned is not None
        if not is_leaving or self.watch is None or not self.is_reachable:
            return False
        if not self.watch.is_open:
            # A server that answers wrong is called until it drains: one reading is waited for.
            return self.condemned is not Cause.WRONG or now - self.since_s >= QUIET_S
        return self.watch.silent_s(now) >= QUIET_S

    begun_s: float = 0.0
    """When its start left the start queue."""
    engine_step: EngineStep | None = None
    """What the engine of its host does for its start; None before the first report, and once that
    is over."""
    fetching: Fetching | None = None
    """Its fetch of its files; None before the first report, and once it is complete."""
    probing: Probing | None = None
    """What the probes of its server meet, until that is ready; None before the first report, and
    for a model."""

    @property
    def is_unknown(self) -> bool:
        """Whether its state may be another one than the record says."""
        return self.contact is not Contact.KNOWN

    @property
    def is_reachable(self) -> bool:
        """Whether its host can be commanded to end it."""
        return self.contact in (Contact.KNOWN, Contact.EXPECTED)

    @property
    def is_present(self) -> bool:
        """Whether it serves or is to serve, as far as is known: its state is no way out."""
        if self.state is State.DRAINING:
            return self.if_idle or self.is_revoked
        return self.state not in ABSENT

    @property
    def is_expected(self) -> bool:
        """Whether it is to be known again soon, and to serve."""
        return self.contact in (Contact.EXPECTED, Contact.JOINING) and self.is_present

    @property
    def is_ready(self) -> bool:
        """Whether it is READY, and known to be so."""
        return self.state is State.READY and not self.is_unknown

    @property
    def can_serve(self) -> bool:
        """Whether gateways may send requests to it: READY and not paused, or DRAINING and free to
        refuse."""
        is_open = self.state is State.READY and not self.is_paused
        serves = is_open or (self.state is State.DRAINING and self.if_idle)
        return serves and not self.is_unknown

    @property
    def is_quiesced(self) -> bool:
        """Whether it finishes its exchanges in a soft drain that is not revoked."""
        return self.state is State.DRAINING and self.claimant != "" and not self.is_revoked

    @property
    def is_returning(self) -> bool:
        """Whether its soft drain was revoked, so that it will soon serve again."""
        return self.state is State.DRAINING and self.is_revoked and not self.is_unknown

    @property
    def is_listed(self) -> bool:
        """Whether gateways keep their links to it: it can serve, or may do so again."""
        return self.can_serve or self.is_quiesced or self.is_returning or self.is_ready

    @property
    def is_yielding(self) -> bool:
        """Whether it gives its CPU slot to another pool, once its open calls have ended."""
        return self.is_ready and self.is_paused and self.claimant != ""

    @property
    def is_leaving(self) -> bool:
        """Whether it will be gone or parked soon, unless it refuses. False after a failed
        release, which may keep failing for ever."""
        is_draining = self.state is State.DRAINING and not self.is_revoked
        is_ending = is_draining or (self.state is State.RELEASING and not self.is_stuck)
        return (is_ending or self.state in FALLING_ASLEEP) and not self.is_unknown

    @property
    def is_stuck(self) -> bool:
        """Whether its release has failed: it is tried again at its time limit."""
        return self.state is State.RELEASING and self.deadline_s < inf

    @property
    def is_coming(self) -> bool:
        """Whether it is known to be on its way to READY."""
        return self.state in COMING and not self.is_unknown

    @property
    def is_parked(self) -> bool:
        """Whether it is PARKED, and known to be so."""
        return self.state is State.PARKED and not self.is_unknown

    @property
    def has_nothing_open(self) -> bool:
        """Whether its state excludes open calls and a sleep in progress, so that it may be released
        at once."""
        return self.state not in MAY_HAVE_OPEN

    @property
    def is_resting(self) -> bool:
        """Whether it is known to be PARKED or on its way to it."""
        return self.state in RESTING and not self.is_unknown

    @property
    def is_unready(self) -> bool:
        """Whether it has never been READY, as far as is known."""
        return self.state in UNREADY


def load_limit_s(spec: PoolSpec) -> float:
    """Return the time limit of a load: max(60 s, 10 x the measured load, 20 s per GiB); for a
    server, its `start_s` and a margin."""
    if spec.is_server:
        return spec.start_s + SERVER_MARGIN_S
    return max(LOAD_MIN_S, LOAD_FACTOR * spec.load_s, LOAD_S_PER_GIB * spec.bundle_bytes / 2**30)


def drain_limit_s(replica: Replica, spec: PoolSpec) -> float:
    """Return the time limit of a drain. That of a server is `drain_s`, the time that its open
    exchanges have; a drain that it may refuse ends none, and takes a handshake with the gateways
    and the server's own end."""
    if not spec.is_server:
        return DRAIN_S
    return DRAIN_S + QUIESCE_S + spec.stop_grace_s if replica.if_idle else spec.drain_s


def term_limit_s(spec: PoolSpec) -> float:
    """Return the seconds between TERM and KILL."""
    return spec.stop_grace_s + TERM_S if spec.is_server else TERM_S


def state_limit_s(replica: Replica, spec: PoolSpec) -> float:
    """Return the seconds that the state just entered may last; infinite if it has no limit."""
    if replica.state is State.STANDBY and replica.role == "standby":
        return inf
    if replica.state in (State.STARTING, State.STANDBY):
        if replica.adopted:
            return GREETING_AFTER_ADOPTION_S
        return QUEUE_S if replica.state is State.STARTING else START_S
    if replica.state is State.LOADING:
        if replica.role not in ("trial", "build"):
            return load_limit_s(spec)
        limit_s = load_limit_s(spec) + VERIFICATION_S + model.patience_s(spec.bundle_bytes)
        limit_s += GOLDEN_TRIAL_S if spec.is_server else 0.0
        return limit_s + (spec.trial_s if replica.role == "trial" else BUILD_S + EXCESS_S)
    if replica.state is State.DRAINING:
        return drain_limit_s(replica, spec)
    return park_limit_s(replica, spec.park or UNKNOWN)


def limit_s(measured_s: float) -> float:
    """Return the time limit of what took `measured_s` seconds in the trial."""
    return max(LIMIT_MIN_S, LIMIT_FACTOR * measured_s)


def park_limit_s(replica: Replica, park: ParkSpec) -> float:
    """Return the same of the states of a park: the golden sample is asked before the sleep, too."""
    match replica.state:
        case State.PARKING:
            return QUIESCE_S + limit_s(park.verify_s) + limit_s(park.sleep_s)
        case State.PROVING:
            return PROOF_S
        case State.PARKED:
            return park.park_s
        case State.UNPARKING:
            return limit_s(park.wake_s)
        case State.VERIFYING:
            return limit_s(park.verify_s)
    return inf
