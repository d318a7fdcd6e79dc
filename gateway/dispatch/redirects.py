"""Which calls follow their function's traffic to another revision, and how they run there.

A call follows if its client gave the function's plain name and it has never started. A call that
had started when its replica died stays with its revision: its deaths count against that model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.dispatch.call import Call
from gateway.dispatch.pool import Pool


@dataclass(frozen=True, slots=True)
class RerunPolicy:
    """How the revision that has the traffic now runs the calls that followed it."""

    may_rerun: bool
    timeout_s: float


class TrafficRedirects:
    """The successor of each revision that lost its function's traffic. `pool` gives a pool by key.

    A revision that has the traffic has no successor, so redirects never form a circle.
    """

    def __init__(self, pool: Callable[[str], Pool]) -> None:
        self._pool = pool
        self.successors: dict[str, tuple[str, RerunPolicy]] = {}

    def on_traffic_moved(self, source: str, target: str, policy: RerunPolicy | None) -> None:
        """Redirect calls from `source` to `target`; `policy` None: they do not fit it, and stay."""
        self.successors.pop(target, None)
        self.successors.pop(source, None)
        if policy is None:
            return
        for key, (successor, _) in list(self.successors.items()):
            if successor == source:
                self.successors[key] = (target, policy)
        self.successors[source] = (target, policy)

    def forget(self, key: str) -> None:
        """Drop every redirect from and to a removed pool."""
        self.successors.pop(key, None)
        for source in [one for one, (successor, _) in self.successors.items() if successor == key]:
            del self.successors[source]

    def successor(self, key: str) -> str:
        """The pool that has the traffic of `key` now; `key` itself where it has not moved."""
        found = self.successors.get(key)
        return found[0] if found else key

    def redirect(self, call: Call, pool: Pool, now: float) -> Pool:
        """The pool that serves `call` from now on, and where that is another one, its policy.

        The call stays in `pool` if its traffic has not moved, if its client named the revision, if
        the call had started once, and while the successor refuses calls. It keeps its wait budget
        and its position.
        """
        found = self.successors.get(pool.key) if self.successors else None
        if found is None or call.pinned or call.alone:
            return pool
        key, policy = found
        target = self._pool(key)
        if target.refusal(now) is not None:
            return pool
        call.pool, call.may_rerun, call.timeout_s = key, policy.may_rerun, policy.timeout_s
        return target

    def redirect_queued(self, pool: Pool, now: float) -> None:
        """Move queued calls of `pool` that may follow its traffic into the successor's queue."""
        moving = [call for call in pool.queue if self.redirect(call, pool, now) is not pool]
        if moving:
            pool.queue.remove_all(moving)
            self._pool(self.successor(pool.key)).queue.merge(moving)
