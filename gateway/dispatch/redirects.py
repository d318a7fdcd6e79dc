"""Which calls follow their function's traffic to another revision, and how they are run there.

A call follows that was addressed by plain name and has never begun to run. One that a dying replica
had begun stays with its revision: what is known of it, it is known of that model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.dispatch.call import Call
from gateway.dispatch.pool import Pool, refusal


@dataclass(frozen=True, slots=True)
class Terms:
    """How calls that follow their function's traffic are run by the revision that has it now."""

    may_rerun: bool
    timeout_s: float


class Moves:
    """Where the calls of revisions without traffic go. `pool` gives the view of a pool by key.

    A revision that has its function's traffic has no entry, so no way leads in a circle.
    """

    def __init__(self, pool: Callable[[str], Pool]) -> None:
        self._pool = pool
        self._ways: dict[str, tuple[str, Terms]] = {}

    def moved(self, source: str, target: str, terms: Terms | None) -> None:
        """Traffic moved; with None, calls meant for `source` do not fit `target` and stay."""
        self._ways.pop(target, None)
        self._ways.pop(source, None)
        if terms is None:
            return
        for key, (heir, _) in list(self._ways.items()):
            if heir == source:
                self._ways[key] = (target, terms)
        self._ways[source] = (target, terms)

    def forget(self, key: str) -> None:
        """A pool is gone: no way leads from it, and none to it."""
        self._ways.pop(key, None)
        for source in [one for one, (heir, _) in self._ways.items() if heir == key]:
            del self._ways[source]

    def heir(self, key: str) -> str:
        """The pool that calls which may follow go to; the same one where traffic has not moved."""
        way = self._ways.get(key)
        return way[0] if way else key

    def readdress(self, call: Call, pool: Pool, now: float) -> Pool:
        """The pool that `call`, which belonged to `pool` so far, is to wait for; its wait budget
        and its place in line stay. A pool that lets nobody wait at present is followed by nobody.
        """
        way = self._ways.get(pool.key) if self._ways else None
        if way is None or call.pinned or call.alone:
            return pool
        key, terms = way
        target = self._pool(key)
        if refusal(target, now) is not None:
            return pool
        call.pool, call.may_rerun, call.timeout_s = key, terms.may_rerun, terms.timeout_s
        return target

    def follow(self, pool: Pool, now: float) -> None:
        """Have everybody who waits for `pool` and may follow its traffic wait there."""
        moving = [call for call in pool.waiting if self.readdress(call, pool, now) is not pool]
        if moving:
            pool.waiting.remove_all(moving)
            self._pool(self.heir(pool.key)).waiting.join(moving)
