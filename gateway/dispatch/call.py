"""Calls, the links they are sent on, and the commands of the dispatcher to its shell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from hashlib import blake2b
from typing import ClassVar, NamedTuple

from registry.errors import FnError
from runtime_image.contract.link import ID_MAX
from runtime_image.link.meta import RequestMeta

Data = bytes | bytearray | memoryview
RERUN_WAIT_S = 60.0
"""Seconds, beyond its timeout, that a call that had started may wait for its second start: other
calls that run alone may precede it."""


class Attempt(NamedTuple):
    """One send of a call that ended without an answer; times are monotonic seconds.

    `has_died`: the replica died, or the connection to it broke; otherwise it returned the call.
    """

    replica: str
    sent_s: float
    ended_s: float
    has_died: bool


class Priority(IntEnum):
    """Order of service while requests wait."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Stage(Enum):
    """Progress of a call. ABANDONED: the client has disconnected; a replica still has the call."""

    QUEUED = "queued"
    SENT = "sent"
    STARTED = "started"
    ABANDONED = "abandoned"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Call:
    """One accepted request, from its last body byte to its answer. Times are monotonic seconds.

    `wait_until_s`: deadline for its start. `may_rerun`: it may run again after it had started.
    `pinned`: the client named the revision, so the call does not follow the function's traffic.
    `deaths`: number of replicas that died while running it. `alone`: it must run in a batch of one.
    `was_held`: no replica was connected when it arrived. `position`: its number among all accepted
    calls, which orders queues. `overdue_s`: deadline for its replica to release it after a recall,
    0 while unknown. `attempts`: the last sends without an answer, oldest first. `is_exchange`: an
    exchange with a function's server; it starts when its connection arrives, and the proxy ends it.
    `is_free`: an exchange that takes no slot, such as a WebSocket while it is quiet. `may_poison`:
    its body is refused after it has killed replicas.
    """

    pool: str
    meta: RequestMeta
    body: Data
    arrived_s: float
    wait_until_s: float
    timeout_s: float
    priority: Priority = Priority.NORMAL
    may_rerun: bool = True
    queue_max: int = 2000
    pinned: bool = False
    stage: Stage = Stage.QUEUED
    link: str = ""
    id: int = 0
    sent_s: float = 0.0
    started_s: float = 0.0
    deaths: int = 0
    sends: int = 0
    alone: bool = False
    was_held: bool = False
    position: int = 0
    overdue_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    is_exchange: bool = False
    is_free: bool = False
    may_poison: bool = True
    refusal: str = ""
    """What the last try to connect to its server met, "" if that was no refusal."""

    def digest(self) -> bytes:
        """Return the digest of its body for its pool."""
        return digest_of(self.pool, (self.body,))

    def run_alone(self, now: float) -> None:
        """Mark a call that had started, or whose batch had, to run again in a batch of one.

        Its wait budget was for the first start and is extended for the second one.
        """
        self.alone = True
        self.extend_wait(now)

    def extend_wait(self, now: float) -> None:
        """Give the call the wait budget of a second start."""
        self.wait_until_s = max(self.wait_until_s, now + self.timeout_s + RERUN_WAIT_S)


def digest_of(pool: str, body: Iterable[Data]) -> bytes:
    """Return the digest of a body, in pieces, that is meant for a pool."""
    key = blake2b(pool.encode(), digest_size=16).digest()
    found = blake2b(digest_size=16, key=key)
    for piece in body:
        found.update(piece)
    return found.digest()


class Send(NamedTuple):
    """Command: send `call` as request `id` over `link`."""

    link: str
    id: int
    call: Call


@dataclass(frozen=True, slots=True)
class Recall:
    """Command: notify the replica that the client of request `id` has disconnected."""

    link: str
    id: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Command: answer `call` with this error."""

    call: Call
    error: FnError


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Command: close a link whose replica does not release a recalled request."""

    link: str
    reason: str


class End(NamedTuple):
    """Command: tell the sidecar that exchange `id` is over.

    `kept`: its connection stays open and idle, for the next exchange of this link.
    """

    link: str
    id: int
    kept: bool


@dataclass(frozen=True, slots=True)
class CloseIdle:
    """Command: close the idle connections of a sidecar's link, and end each of them."""

    link: str


@dataclass(frozen=True, slots=True)
class Decline:
    """Command: decline the slot that a sidecar offers."""

    link: str


@dataclass(frozen=True, slots=True)
class Quiesced:
    """Command: answer QUIESCE; `count` exchanges are open or requested."""

    link: str
    count: int


@dataclass(frozen=True, slots=True)
class TellTunnel:
    """Command: tell the sidecar that exchange `id` is a WebSocket, quiet or in use."""

    link: str
    id: int
    is_quiet: bool


Command = Send | Recall | Fail | GiveUp | End | CloseIdle | Decline | Quiesced | TellTunnel


@dataclass(slots=True, eq=False)
class Link:
    """A connected replica and the requests of this process that are in flight there.

    `limit`: max requests in flight, 0 while the replica is paused. `marks_started`: the replica
    reports when requests start. `full`: it rejected a request and will send WINDOW when it has
    room. `closing`: it accepts no new requests. `settled`: ids that were requeued after GOAWAY and
    that it may still return. `given_up`: the shell was commanded to close the link. `host` is the
    replica's host, "" for this machine; `rtt_s`: the round trip time to it, 0 for this machine.
    """

    is_server: ClassVar[bool] = False

    id: str
    pool: str
    limit: int
    marks_started: bool
    in_flight: dict[int, Call] = field(default_factory=dict)
    last_id: int = 0
    full: bool = False
    closing: bool = False
    settled: set[int] = field(default_factory=set)
    given_up: bool = False
    host: str = ""
    rtt_s: float = 0.0

    @property
    def owed(self) -> int:
        """Number of calls at the replica whose clients are still connected."""
        return sum(call.stage is not Stage.ABANDONED for call in self.in_flight.values())

    def send(self, call: Call, now: float) -> Send:
        """Put `call` in flight; return the command that sends it."""
        self.put(call, now)
        return Send(self.id, call.id, call)

    def put(self, call: Call, now: float) -> None:
        """Put `call` in flight under an unused id; ids wrap around at ID_MAX."""
        id = self.last_id % ID_MAX + 1
        while id in self.in_flight:
            id = id % ID_MAX + 1
        self.last_id = call.id = id
        # Every replica reports the start of a call that runs alone.
        call.stage = Stage.SENT if self.marks_started or call.alone else Stage.STARTED
        call.link = self.id
        call.sent_s = call.started_s = now
        call.sends += 1
        self.in_flight[id] = call

    def sent_after(self, id: int) -> list[Call]:
        """Return the calls in flight that were sent after `id`, in order.

        Ids are compared modulo their wrap-around.
        """
        half = (ID_MAX + 1) // 2
        return [
            call for sent, call in self.in_flight.items() if 0 < (sent - id) % (ID_MAX + 1) < half
        ]


@dataclass(slots=True, eq=False)
class ServerLink(Link):
    """The link of a sidecar: exchanges with a function's server.

    `in_flight` has the exchanges that take a slot, `free` the others; `quiet` of these are
    WebSockets without data. `is_waiting`: the link waits
    in the sidecar's rotation and sends OPEN only for offered slots. `retry_s`: nothing is sent
    before that time, because the server refused a connection; `free_retry_s`: the same for free
    exchanges; 0 = no wait. `full` is set while the link waits for either. `recalled`: connections
    that the sidecar recalled too late, to be closed when their exchanges end.
    """

    is_server: ClassVar[bool] = True

    free: dict[int, Call] = field(default_factory=dict)
    quiet: set[int] = field(default_factory=set)
    is_waiting: bool = False
    retry_s: float = 0.0
    free_retry_s: float = 0.0
    recalled: int = 0

    @property
    def owed(self) -> int:
        """Number of exchanges that are open or requested."""
        return len(self.in_flight) + len(self.free)

    def find(self, id: int) -> Call | None:
        """Return the exchange `id`, None if it has ended."""
        return self.in_flight.get(id) or self.free.get(id)

    def take_id(self) -> int:
        """Return an unused id; ids wrap around at ID_MAX."""
        id = self.last_id % ID_MAX + 1
        while id in self.in_flight or id in self.free:
            id = id % ID_MAX + 1
        self.last_id = id
        return id

    def put(self, call: Call, now: float) -> None:
        """Request a connection for `call` under an unused id."""
        id = call.id = self.take_id()
        call.stage = Stage.SENT
        call.link = self.id
        call.sent_s = call.started_s = now
        call.sends += 1
        exchanges = self.free if call.is_free else self.in_flight
        exchanges[id] = call

    def set_quiet(self, call: Call, *, is_quiet: bool) -> None:
        """Note that a WebSocket takes no slot, or takes one again."""
        self.release(call)
        call.is_free = is_quiet
        if is_quiet:
            self.quiet.add(call.id)
            self.free[call.id] = call
        else:
            self.in_flight[call.id] = call

    def release(self, call: Call) -> None:
        """Remove an exchange that has ended or returns to its queue."""
        exchanges = self.free if call.is_free else self.in_flight
        del exchanges[call.id]
        self.quiet.discard(call.id)
