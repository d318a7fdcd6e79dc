"""One revision as the dispatcher sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.dispatch.estimate import Pace
from gateway.dispatch.links import Link
from gateway.dispatch.waiting import WaitingLine
from registry.exchange import PoolEndpoints

UNKNOWN = PoolEndpoints([], "cold", "nobody calls")


@dataclass(slots=True)
class Pool:
    """Who waits for it, which replicas serve it, what the manager last said of it.

    `retry_at_s` is `shown.retry_after_s` on this process's clock.
    """

    key: str
    waiting: WaitingLine = field(default_factory=WaitingLine)
    links: dict[str, Link] = field(default_factory=dict)
    shown: PoolEndpoints = UNKNOWN
    retry_at_s: float = 0.0
    pace: Pace = field(default_factory=Pace)

    @property
    def is_at_rest(self) -> bool:
        """Whether it is as a pool never heard of: cold, without reason, and nobody waits."""
        return self.shown == UNKNOWN and not self.links and not self.waiting

    @property
    def in_flight(self) -> int:
        """Requests that replicas have from here, recalled ones too."""
        return sum(len(link.in_flight) for link in self.links.values())
