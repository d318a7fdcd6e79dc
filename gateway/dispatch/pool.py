"""The dispatcher's view of one revision: its queue, its links and its cold start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from gateway.dispatch.call import Call, Link, ServerLink, Stage
from gateway.dispatch.queue import CallQueue
from registry.errors import FnError, FunctionFailing, ShuttingDown, UnknownFunction
from registry.exchange import Expected, Load, PoolEndpoints
from runtime_image.contract.server import FREE_MAX

WINDOW_S = 10.0
"""Seconds over which the rate of answers is measured."""
RATE_SAMPLES_MAX = 1024
LARGE_ANSWER = 1024 * 1024
"""Bytes of an answer from which calls of its pool wait until there is room for their answers."""
RETRY_MIN_S = 1
RETRY_MAX_S = 60
RETRY_UNKNOWN_S = 5
"""Retry-After, in seconds, if nothing was answered within WINDOW_S."""
TAKEOVER_S = 2.0
"""Retry-After, in seconds, of a process whose pool manager is gone."""
SAMPLES_ENOUGH = 5
"""Min measured cold starts before calls are refused because the next one takes too long."""
UNKNOWN_COLD_START = Expected(0.0, 5.0, 5.0, 0)
UNKNOWN = PoolEndpoints([], "cold", "no calls")


@dataclass(slots=True)
class Pool:
    """The queue and the links of one revision, and the manager's last report of it.

    `retry_at_s`: `endpoints.retry_after_s` on this process's clock. `cold_start`: expected duration
    of the next one. `answered_s`: times of the last answers. `waking_since_s`: since when the pool
    has been woken, None while it is not. `wake_until_s`: keep waking the pool until then for
    callers that were refused because their wait budgets were too short; 0 = off. `has_manager`:
    replicas can be started. `free_queue`: exchanges that take no slot and wait for a replica.
    `detached`: exchanges whose link has ended and that the proxy has not ended yet.
    `answer_bytes`: expected size of an answer, 0 unless recent ones were large.
    """

    key: str
    queue: CallQueue = field(default_factory=CallQueue)
    links: dict[str, Link] = field(default_factory=dict)
    endpoints: PoolEndpoints = UNKNOWN
    retry_at_s: float = 0.0
    cold_start: Expected = UNKNOWN_COLD_START
    answered_s: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_SAMPLES_MAX))
    waking_since_s: float | None = None
    wake_until_s: float = 0.0
    has_manager: bool = True
    free_queue: dict[Call, None] = field(default_factory=dict)
    detached: dict[Call, bool] = field(default_factory=dict)
    answer_bytes: int = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether the pool equals an unknown one, or a removed one: no links, no calls."""
        is_asked = self.queue or self.wake_until_s or self.free_queue or self.detached
        if self.links or is_asked:
            return False
        return self.endpoints == UNKNOWN or self.endpoints.state == "gone"

    @property
    def is_connected(self) -> bool:
        """Whether a connected replica accepts calls, with room or without. A paused one does
        not."""
        for link in self.links.values():  # noqa: SIM110 - any() of a generator takes thrice as long
            if link.limit and not link.closing:
                return True
        return False

    @property
    def has_replica(self) -> bool:
        """Whether a replica accepts calls, or will once it is connected."""
        return bool(self.endpoints.replicas) or self.is_connected

    def add_link(self, link: Link) -> None:
        """Add a link. `links` has the lowest round trip times first, so that `least_loaded_link`
        prefers this machine, and then the nearest host, without comparing them."""
        self.links[link.id] = link
        if link.rtt_s or any(each.rtt_s for each in self.links.values()):
            by_rtt = sorted(self.links.values(), key=lambda each: each.rtt_s)
            self.links = {each.id: each for each in by_rtt}

    def update_limits(self) -> bool:
        """Take over the limits of replicas that the manager has published, 0 of one that is paused;
        whether any changed. Without a manager, which would end the pause, none is."""
        has_changed = False
        for endpoint in self.endpoints.replicas:
            link = self.links.get(endpoint.id)
            limit = 0 if endpoint.paused and self.has_manager else endpoint.limit
            if link is not None and link.limit != limit:
                link.limit, has_changed = limit, True
        return has_changed

    def least_loaded_link(self) -> Link | None:
        """Return the link with room and the fewest requests in flight, None if all are full.

        Among equals it is the first one in `links`.
        """
        best: Link | None = None
        fewest = 0
        for link in self.links.values():
            count = len(link.in_flight)
            if count >= link.limit or link.full or link.closing:
                continue
            if best is None or count < fewest:
                best, fewest = link, count
        return best

    def free_link(self, now: float) -> ServerLink | None:
        """Return the link with the fewest exchanges that take no slot, None if none has room.

        Such exchanges may be sent to a link that is full.
        """
        best: ServerLink | None = None
        fewest = 0
        for link in self.links.values():
            if not isinstance(link, ServerLink) or link.closing or now < link.free_retry_s:
                continue
            count = len(link.free) - len(link.quiet)
            if count < FREE_MAX and (best is None or count < fewest):
                best, fewest = link, count
        return best

    def queue_size(self, call: Call) -> int:
        """Return the length of the queue in which `call` would wait."""
        return len(self.free_queue) if call.is_free else len(self.queue)

    def enqueue(self, call: Call) -> None:
        """Queue a call whose position is higher than all others."""
        if call.is_free:
            self.free_queue[call] = None
        else:
            self.queue.append(call)

    def requeue(self, call: Call) -> None:
        """Queue a call again, at its old position; an exchange that takes no slot as the last."""
        if call.is_free:
            self.free_queue[call] = None
        else:
            self.queue.reinsert(call)

    def dequeue(self, call: Call) -> None:
        """Remove a queued call."""
        if call.is_free:
            del self.free_queue[call]
        else:
            self.queue.remove(call)

    def queued(self) -> list[Call]:
        """Return all queued calls."""
        return [*self.queue, *self.free_queue]

    def clear_queues(self) -> list[Call]:
        """Remove and return all queued calls."""
        calls = self.queue.clear() + list(self.free_queue)
        self.free_queue.clear()
        return calls

    def note_answer(self, size: int) -> None:
        """Note the size of an answer in bytes: the largest counts, and is forgotten bit by bit."""
        expected = max(size, self.answer_bytes * 7 // 8)
        self.answer_bytes = expected if expected >= LARGE_ANSWER else 0

    @property
    def held(self) -> int:
        """Number of queued calls."""
        return len(self.queue) + len(self.free_queue)

    @property
    def in_flight(self) -> int:
        """Number of requests of this process at replicas, including recalled ones."""
        return sum(len(link.in_flight) for link in self.links.values())

    @property
    def owed(self) -> int:
        """Number of requests of this process at replicas whose clients are still connected."""
        return sum(link.owed for link in self.links.values()) + len(self.detached)

    def open_text(self, now: float) -> str:
        """Return what holds up the queue, to be added to a refusal; "" if no exchange is open."""
        links = [link for link in self.links.values() if isinstance(link, ServerLink)]
        began = [
            call.started_s
            for link in links
            for call in link.in_flight.values()
            if call.stage is Stage.STARTED
        ]
        if not (began and self.is_connected):
            return ""
        most, oldest_s = sum(link.limit for link in links), now - min(began)
        taken = f"{len(began)} of {most} slots are taken by exchanges of this gateway process"
        return f"; {taken}, the oldest for {oldest_s:.0f} s"

    def refusal(self, now: float) -> FnError | None:
        """Return the error for calls that need this pool, None while calls may wait for it."""
        if self.endpoints.state == "gone":
            return UnknownFunction("the function was removed")
        if not self.has_manager and not self.is_connected:
            text = "no replica can be started until a new server process takes over"
            return ShuttingDown(text, retry_after_s=TAKEOVER_S)
        if self.endpoints.state != "failing" or now >= self.retry_at_s:
            return None
        return FunctionFailing(
            f"the function fails to load: {self.endpoints.told}",
            retry_after_s=self.retry_at_s - now,
            admin_detail={"log_tail": list(self.endpoints.log_tail)},
        )

    def waking_s(self, now: float) -> float:
        """Return for how long the pool has been woken, 0 while it is not."""
        return 0.0 if self.waking_since_s is None else now - self.waking_since_s

    @property
    def next_start(self) -> Expected:
        """Expected duration until a replica serves: of a wake, which only a trial has measured,
        while one sleeps or wakes; else of a cold start."""
        wake_s = self.endpoints.wake_s
        return Expected(wake_s, wake_s, wake_s, 1) if wake_s else self.cold_start

    def starts_too_late(self, budget_s: float, now: float) -> bool:
        """Return whether the cold start almost certainly (p10) exceeds `budget_s` from now."""
        if self.has_replica or self.next_start.samples < SAMPLES_ENOUGH:
            return False
        return self.next_start.p10_s - self.waking_s(now) > budget_s

    def retry_after_s(self, now: float) -> int:
        """Return the seconds (RETRY_MIN_S to RETRY_MAX_S) until one more call would be served soon.

        1. There is no replica: the rest of most cold starts (p90), or of a wake.
        2. A call was answered within WINDOW_S: the time to serve the queue at that rate.
        3. None was: RETRY_UNKNOWN_S.
        """
        if not self.has_replica:  # 1
            seconds = self.next_start.p90_s - self.waking_s(now)
        elif recent := [end for end in self.answered_s if now - end <= WINDOW_S]:  # 2
            seconds = len(self.queue) * max(now - recent[0], 0.1) / len(recent)
        else:  # 3
            return RETRY_UNKNOWN_S
        return max(RETRY_MIN_S, min(RETRY_MAX_S, ceil(seconds)))

    def wake(self, now: float) -> None:
        """Wake the pool for refused callers, for at most the duration of one cold start."""
        self.wake_until_s = now + max(0.0, self.next_start.p90_s - self.waking_s(now))
        self.update_waking(now)

    def update_waking(self, now: float) -> None:
        """Update since when the pool has been woken."""
        has_replica = self.has_replica
        if has_replica or now >= self.wake_until_s:
            self.wake_until_s = 0.0
        is_asked = self.held or self.wake_until_s or self.endpoints.state == "waking"
        if has_replica or not is_asked:
            self.waking_since_s = None
        elif self.waking_since_s is None:
            self.waking_since_s = now

    def load(self, now: float) -> Load:
        """Return the demand for this pool: queued calls, requests in flight, the longest wait.

        While the pool is woken for refused callers, they count as one more queued call that arrived
        when the waking began. Exchanges that take no slot count only while no replica is connected.
        """
        has_refused = now < self.wake_until_s
        queued, oldest_s = len(self.queue) + has_refused, 0.0
        if self.queue:
            oldest_s = now - self.queue.oldest_s()
        if self.free_queue and not self.is_connected:
            queued += len(self.free_queue)
            oldest_s = max(oldest_s, now - next(iter(self.free_queue)).arrived_s)
        if has_refused:
            oldest_s = max(oldest_s, self.waking_s(now))
        return Load(queued, self.in_flight, max(0.0, oldest_s))
