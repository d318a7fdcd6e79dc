"""One pool: its failures and back-off, its replicas, how it looks from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from pool_manager.core.state import PoolSpec, Replica, State

BACKOFF_MAX_S = 60.0
FAILING_AFTER = 5
"""Loads that failed in a row before the revision is called failing."""


@dataclass(slots=True)
class Pool:
    """A revision's replicas. `retry_at_s` is when the next start may be tried.

    `waiting_since_s` is when the present first waiter came, from which its cold start counts.
    `evicting` is the replica that was asked to make room for this pool.
    """

    spec: PoolSpec
    removed: bool = False
    failures: int = 0
    retry_at_s: float = 0.0
    last_error: str = ""
    log_tail: tuple[str, ...] = ()
    waiting_since_s: float | None = None
    evicting: str = ""
    evicting_since_s: float = 0.0
    blocked: str = ""
    wanted: int = 0
    wanted_reason: str = ""
    replicas: dict[str, Replica] = field(default_factory=dict)

    def count(self) -> int:
        """Replicas that serve or will."""
        return sum(r.is_coming or r.can_serve for r in self.replicas.values())

    def staying(self) -> int:
        """Replicas that serve or will and have not been asked to go."""
        return sum(r.is_coming or r.state is State.READY for r in self.replicas.values())

    @property
    def is_warm(self) -> bool:
        """Whether a replica can serve now."""
        return any(replica.can_serve for replica in self.replicas.values())

    def fail(self, reason: str, log_tail: tuple[str, ...], now: float) -> None:
        """A start or load failed: back off 1 s, doubled with every failure in a row."""
        self.failures += 1
        self.last_error = reason
        self.log_tail = log_tail
        # The exponent is bounded: a floor is tried again for ever, and floats end at 2.0**1024.
        self.retry_at_s = now + min(BACKOFF_MAX_S, 2.0 ** min(self.failures - 1, 10))

    def succeed(self) -> None:
        """A load went well: the past is forgiven."""
        self.failures = 0
        self.retry_at_s = 0.0
        self.last_error = ""
        self.log_tail = ()

    def is_failing(self, now: float) -> bool:
        """Callers are told at once, until it may be tried again."""
        return self.failures >= FAILING_AFTER and now < self.retry_at_s

    def look(self, held: int, now: float) -> tuple[str, str]:
        """State and reason as gateways, lists and the dashboard show them."""
        states = {replica.state for replica in self.replicas.values()}
        if self.is_warm:
            return "warm", self.wanted_reason
        if self.is_failing(now):
            return "failing", self.last_error
        if states & {State.STARTING, State.STANDBY, State.LOADING}:
            return "waking", self.wanted_reason
        if held:
            return "waking", self.blocked or self.last_error or self.wanted_reason
        if states:
            return "draining", next(r.why for r in self.replicas.values())
        return "cold", self.last_error or "nobody calls"
