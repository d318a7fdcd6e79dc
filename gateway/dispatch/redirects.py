"""Redirects: which calls follow their function's traffic to another revision.

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
    """Timeout and rerun rule of redirected calls, from the revision that has the traffic now."""

    may_rerun: bool
    timeout_s: float


class TrafficRedirects:
    """The successor of each revision that lost its function's traffic.

    A revision that has the traffic has no successor, so redirects never form a cycle. `pool`
    returns a pool by key.
    """

    def __init__(self, pool: Callable[[str], Pool]) -> None:
        self._pool = pool
        self.successors: dict[str, tuple[str, RerunPolicy]] = {}

    def on_traffic_moved(self, source: str, target: str, policy: RerunPolicy | None) -> None:
        """Redirect calls from `source` to `target`.

        With `policy` None the calls stay: their inputs may not fit `target`.
        """
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
        """Return the pool that now has the traffic of `key`; `key` itself if it has not moved."""
        found = self.successors.get(key)
        return found[0] if found else key

    def redirect(self, call: Call, pool: Pool, now: float) -> Pool:
        """Return the pool that serves `call` from now on; apply its policy if it is another one.

        The call stays in `pool` if the traffic has not moved, if the client named the revision, if
        the call had started once, or while the successor refuses calls. Its wait budget and
        position do not change.
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
        for call in list(pool.free_queue):
            target = self.redirect(call, pool, now)
            if target is not pool:
                pool.dequeue(call)
                target.enqueue(call)
