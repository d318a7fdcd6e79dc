"""One accepted request, the link it is sent on, and what the dispatcher asks of its shell."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from registry.errors import FnError
from runtime_image.contract.link import ID_MAX
from runtime_image.link.meta import RequestMeta

AGAIN_S = 60.0
"""How long a call that had begun may wait to begin again, beyond one run of its own length: who
runs alone before it may take as long."""


class Attempt(NamedTuple):
    """A time that a call was with a replica and came back unanswered. Monotonic seconds; `has_died`
    tells that the replica is gone, otherwise it handed the call back."""

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
    """How far a call has come. ABANDONED: nobody wants it, but a replica still has it."""

    QUEUED = "queued"
    SENT = "sent"
    STARTED = "started"
    ABANDONED = "abandoned"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Call:
    """A request from its last body byte to its answer. Times are monotonic seconds.

    `wait_until_s`: when it must have started. `may_rerun`: it may be run again although it had
    started. `deaths`: replicas that died while running it. `alone`: it is to run in a batch of one.
    `pinned`: its client named the revision, so it does not follow the function's traffic.
    `was_held`: no replica was ready when it came. `place`: its number in the line, kept while it
    is not answered. `overdue_s`: when a replica must have let go of it although nobody wants it, 0
    while that is not known. `attempts` are the last that came to nothing, oldest first.
    """

    pool: str
    meta: RequestMeta
    body: bytes | bytearray | memoryview
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
    place: int = 0
    overdue_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()

    def run_alone(self, now: float) -> None:
        """It had begun, or its batch had: it runs again alone. Its wait budget was for the begin
        that it has had, and ends it no more."""
        self.alone = True
        self.wait_until_s = max(self.wait_until_s, now + self.timeout_s + AGAIN_S)


class Send(NamedTuple):
    """Send `call` as request `id` over `link`."""

    link: str
    id: int
    call: Call


@dataclass(frozen=True, slots=True)
class Recall:
    """Tell the replica that request `id` is no longer wanted."""

    link: str
    id: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer `call` with this error."""

    call: Call
    error: FnError


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End a link whose replica does not let go of what it was told to."""

    link: str
    reason: str


Command = Send | Recall | Fail | GiveUp


@dataclass(slots=True, eq=False)
class Link:
    """A replica that can be sent to. `full`: it had no room for us and will say when it has.

    `closing`: it takes nothing new. `pardoned`: ids it may still hand back although they are
    settled. `given_up`: its end was asked for.
    """

    id: str
    pool: str
    limit: int
    marks_started: bool
    in_flight: dict[int, Call] = field(default_factory=dict)
    last_id: int = 0
    full: bool = False
    closing: bool = False
    pardoned: set[int] = field(default_factory=set)
    given_up: bool = False

    @property
    def has_room(self) -> bool:
        """Whether one more request may be sent."""
        return len(self.in_flight) < self.limit and not (self.full or self.closing)

    def next_id(self) -> int:
        """An id that is not in use; ids wrap, those still in use are skipped."""
        while True:
            self.last_id = self.last_id % ID_MAX + 1
            if self.last_id not in self.in_flight:
                return self.last_id

    def sent_after(self, id: int) -> list[Call]:
        """Calls in flight sent after `id`, in that order; ids are compared modulo wrap."""
        half = (ID_MAX + 1) // 2
        return [
            call for sent, call in self.in_flight.items() if 0 < (sent - id) % (ID_MAX + 1) < half
        ]
