"""One revision as the dispatcher sees it: who may wait for it, and for how long."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from gateway.dispatch.call import Call, Link, Stage
from gateway.dispatch.queue import WaitingLine
from registry.errors import (
    FnError,
    FunctionFailing,
    QueueFull,
    ShuttingDown,
    UnknownFunction,
    WaitBudgetOver,
)
from registry.exchange import Expected, Load, PoolEndpoints

WINDOW_S = 10.0
RETRY_MIN_S = 1
RETRY_MAX_S = 60
RETRY_UNKNOWN_S = 5
"""Told where nothing has been answered lately."""
SAMPLES_MAX = 1024
SAMPLES_ENOUGH = 5
"""Cold starts from which it may be told that the next one takes too long for somebody."""
UNKNOWN_COLD_START = Expected(0.0, 5.0, 5.0, 0)
"""Assumed where nothing was said of a revision yet."""


@dataclass(slots=True)
class Pace:
    """How fast a revision answers. `expected` is what a cold start of it takes."""

    expected: Expected = UNKNOWN_COLD_START
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def answered(self, now: float) -> None:
        """One more answer was given."""
        self._ends.append(now)

    def retry_warm_s(self, ahead: int, now: float) -> int:
        """Whole seconds until `ahead` calls will have been served, by the rate of the last
        seconds."""
        recent = [end for end in self._ends if now - end <= WINDOW_S]
        if not recent:
            return RETRY_UNKNOWN_S
        span = max(now - recent[0], 0.1)
        return _whole_s(ahead * span / len(recent))

    def retry_cold_s(self, waking_s: float) -> int:
        """Whole seconds until most cold starts that have taken `waking_s` so far are over."""
        return _whole_s(self.expected.p90_s - waking_s)

    def is_too_long(self, waking_s: float, budget_s: float) -> bool:
        """Whether what is left of a cold start all but certainly takes longer than `budget_s`."""
        left_s = self.expected.p10_s - waking_s
        return self.expected.samples >= SAMPLES_ENOUGH and left_s > budget_s


def _whole_s(seconds: float) -> int:
    """What the header can say: whole seconds, one at least."""
    return max(RETRY_MIN_S, min(RETRY_MAX_S, ceil(seconds)))


UNKNOWN = PoolEndpoints([], "cold", "nobody calls")


@dataclass(slots=True)
class Pool:
    """Who waits for it, which replicas serve it, what the manager last said of it.

    `retry_at_s` is `shown.retry_after_s` on this process's clock, `waking_since_s` since when it
    has been woken, None while it is not. It is wanted until `wanted_until_s` although perhaps
    nobody waits: somebody would, had they more time. 0 where that is over. Without `has_manager`
    no replica is started any more.
    """

    key: str
    waiting: WaitingLine = field(default_factory=WaitingLine)
    links: dict[str, Link] = field(default_factory=dict)
    shown: PoolEndpoints = UNKNOWN
    retry_at_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    waking_since_s: float | None = None
    wanted_until_s: float = 0.0
    has_manager: bool = True

    @property
    def is_at_rest(self) -> bool:
        """Whether it is as a pool never heard of: cold, without reason, and nobody waits."""
        is_asked = self.waiting or self.wanted_until_s
        return self.shown == UNKNOWN and not self.links and not is_asked

    @property
    def is_open(self) -> bool:
        """Whether there is a replica to send to, with room or without."""
        for link in self.links.values():  # noqa: SIM110 - any() of a generator takes thrice as long
            if not link.closing:
                return True
        return False

    def roomiest(self) -> Link | None:
        """The replica with the fewest requests in flight of those with room."""
        best: Link | None = None
        fewest = 0
        for link in self.links.values():
            count = len(link.in_flight)
            if link.has_room and (best is None or count < fewest):
                best, fewest = link, count
        return best

    @property
    def in_flight(self) -> int:
        """Requests that replicas have from here, recalled ones too."""
        return sum(len(link.in_flight) for link in self.links.values())

    @property
    def owed(self) -> int:
        """Requests that replicas have from here and somebody waits for."""
        calls = (call for link in self.links.values() for call in link.in_flight.values())
        return sum(call.stage is not Stage.ABANDONED for call in calls)

    @property
    def is_served(self) -> bool:
        """Whether there is a replica that takes calls, or will once it is connected."""
        return bool(self.shown.replicas) or self.is_open

    def waking_s(self, now: float) -> float:
        """How long it has been woken, 0 while it is not."""
        return 0.0 if self.waking_since_s is None else now - self.waking_since_s

    def retry_after_s(self, now: float) -> int:
        """In how many whole seconds one more call would be served soon."""
        if self.is_served:
            return self.pace.retry_warm_s(len(self.waiting), now)
        return self.pace.retry_cold_s(self.waking_s(now))

    def want(self, now: float) -> None:
        """Have it woken although nobody waits: for one cold start at most."""
        self.wanted_until_s = now + max(0.0, self.pace.expected.p90_s - self.waking_s(now))

    def watch(self, now: float) -> None:
        """Take note of when its waking begins and ends."""
        if self.is_served or now >= self.wanted_until_s:
            self.wanted_until_s = 0.0
        is_asked = self.waiting or self.wanted_until_s or self.shown.state == "waking"
        if self.is_served or not is_asked:
            self.waking_since_s = None
        elif self.waking_since_s is None:
            self.waking_since_s = now

    def load(self, now: float) -> Load:
        """What is held and in flight. Who would wait counts as one that waits."""
        is_wanted = now < self.wanted_until_s
        queued, oldest_s = len(self.waiting) + is_wanted, 0.0
        if self.waiting:
            oldest_s = now - self.waiting.oldest_s()
        if is_wanted:
            oldest_s = max(oldest_s, self.waking_s(now))
        return Load(queued, self.in_flight, max(0.0, oldest_s))


TAKEOVER_S = 2.0
"""After how long a client should try again that a process without its supervisor turned away."""


def check(call: Call, pool: Pool, now: float, held_bytes: int, bytes_max: int) -> None:
    """Raises UnknownFunction, FunctionFailing or QueueFull where `call` must be turned away."""
    error = refusal(pool, now)
    if error is not None:
        raise error
    waiting = len(pool.waiting)
    if waiting >= call.queue_max:
        text = f"{waiting} requests wait already, at most {call.queue_max} may"
    elif held_bytes + len(call.body) > bytes_max:
        text = f"the requests held have {held_bytes} bytes, at most {bytes_max} are allowed"
    else:
        return
    raise QueueFull(text, retry_after_s=pool.retry_after_s(now))


def foresee(call: Call, pool: Pool, now: float) -> None:
    """Raises WaitBudgetOver where `call` would wait for a cold start in vain. It goes on: the pool
    is wanted as if the call waited."""
    budget_s = call.wait_until_s - call.arrived_s
    if pool.is_served or not pool.pace.is_too_long(pool.waking_s(now), budget_s):
        return
    pool.want(now)
    pool.watch(now)
    text = (
        f"the function is started, which takes about {pool.pace.expected.p50_s:.3g} s;"
        f" this request may wait {budget_s:.3g} s"
    )
    raise WaitBudgetOver(text, retry_after_s=pool.retry_after_s(now))


def refusal(pool: Pool, now: float) -> FnError | None:
    """Why nobody may wait for this pool at present, if so."""
    if pool.shown.state == "gone":
        return UnknownFunction("the function was removed")
    if not pool.has_manager and not pool.is_open:
        text = "nothing can be started: the server is gone, and the next one has to take over"
        return ShuttingDown(text, retry_after_s=TAKEOVER_S)
    if pool.shown.state != "failing" or now >= pool.retry_at_s:
        return None
    return FunctionFailing(
        f"the function fails to load: {pool.shown.reason}",
        retry_after_s=pool.retry_at_s - now,
        admin_detail={"log_tail": list(pool.shown.log_tail)},
    )
