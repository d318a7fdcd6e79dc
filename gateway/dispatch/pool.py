"""One revision as the dispatcher sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.dispatch.estimate import Pace
from gateway.dispatch.links import Link
from gateway.dispatch.waiting import WaitingLine
from registry.exchange import PoolEndpoints

UNKNOWN = PoolEndpoints([], "cold", "nobody calls")


@dataclass(frozen=True, slots=True)
class Terms:
    """How calls that follow their function's traffic are run by the revision that has it now."""

    may_rerun: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Successor:
    """The pool that a revision's calls go to since traffic has moved."""

    pool: Pool
    terms: Terms


@dataclass(slots=True)
class Pool:
    """Who waits for it, which replicas serve it, what the manager last said of it.

    `successor` is None while calls by plain name come here, and where they do not fit the revision
    that they go to now. `retry_at_s` is `shown.retry_after_s` on this process's clock.
    """

    key: str
    waiting: WaitingLine = field(default_factory=WaitingLine)
    links: dict[str, Link] = field(default_factory=dict)
    shown: PoolEndpoints = UNKNOWN
    retry_at_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    successor: Successor | None = None

    @property
    def heir(self) -> Pool:
        """Where calls that follow the traffic are to go; itself where it has moved nowhere.

        Chains have an end: traffic comes only to a pool without a successor.
        """
        pool = self
        while pool.successor is not None:
            pool = pool.successor.pool
        return pool

    @property
    def in_flight(self) -> int:
        """Requests that replicas have from here, recalled ones too."""
        return sum(len(link.in_flight) for link in self.links.values())
