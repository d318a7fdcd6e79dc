"""One revision as the dispatcher sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.dispatch.call import Stage
from gateway.dispatch.estimate import Pace
from gateway.dispatch.links import Link
from gateway.dispatch.waiting import WaitingLine
from registry.exchange import Load, PoolEndpoints

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
