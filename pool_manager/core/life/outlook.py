"""What is about to happen to a pool."""

from __future__ import annotations

from typing import Final, NamedTuple

from pool_manager.core.pool import Pool
from pool_manager.core.state import State

PHASE_OF: Final = {State.STARTING: "start", State.STANDBY: "bind", State.LOADING: "load"}
"""The phase of a cold start that a replica in this state is in, as far as can be seen from
outside: what else it does meanwhile it says when it is over."""


class Outlook(NamedTuple):
    """`phase`: what a cold pool that is called is doing now. `sleeps_in_s`: when the next of its
    replicas has been idle for long enough to go, None where none will. `devices`: where its
    replicas are."""

    phase: str | None
    sleeps_in_s: float | None
    devices: tuple[str, ...]


AT_REST: Final = Outlook(None, None, ())


def outlook(pool: Pool, busy: int, now: float) -> Outlook:
    """`busy` is how many requests are held or in flight."""
    if not (pool.replicas or busy):
        return AT_REST
    devices = {one.device: None for one in pool.replicas.values() if one.device}
    return Outlook(_phase(pool, busy), _sleeps_in_s(pool, busy, now), tuple(devices))


def _phase(pool: Pool, busy: int) -> str | None:
    if pool.is_warm or pool.removed:
        return None
    # The one that is furthest will serve first.
    for state in (State.LOADING, State.STANDBY, State.STARTING):
        if any(one.state is state for one in pool.replicas.values()):
            return PHASE_OF[state]
    if not busy or pool.blocked == "":
        return None
    return "place"


def _sleeps_in_s(pool: Pool, busy: int, now: float) -> float | None:
    serving = [one for one in pool.replicas.values() if one.can_serve]
    if busy or len(serving) <= pool.spec.min:
        return None
    return max(0.0, pool.spec.idle_s - max(pool.idle_s(one, now) for one in serving))
