"""Eviction policies: the product's rule, and others to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from admin.advice.load_model import Function
from benchmarks.simulation.world import World
from pool_manager.core import eviction
from pool_manager.core.candidates import Candidate
from pool_manager.core.pool import UNKNOWN_RELOAD_S, CallRate, Pool

Cost = Callable[[CallRate, float, float], float]
LEAST_S = 1e-3
"""Lower bound of divisors, in seconds."""


class Sight(NamedTuple):
    """Inputs of a rule: the manager's pool, the simulated function, the reload time in seconds, and
    the current time."""

    pool: Pool
    function: Function
    reload_s: float
    now: float


def by_recency(sight: Sight) -> float:
    """LRU by the manager's data, which is updated once a second."""
    return 1.0 / max(LEAST_S, sight.now - sight.pool.last_used_s)


def by_foresight(sight: Sight) -> float:
    """The product's rule with knowledge of the next call's time."""
    return sight.reload_s / max(LEAST_S, sight.function.next_s - sight.now)


RULES: dict[str, Callable[[Sight], float]] = {
    "lru": by_recency,
    "foresight": by_foresight,
}
POLICIES = ("fngate", "no-stay", "keepalive", *RULES)


@contextmanager
def policy(world: World, name: str) -> Iterator[None]:
    """Make the world's machine decide by this policy while the context lasts.

    The eviction cost is one pure function, which is replaced at run time: only this comparison
    needs to, so the product has no hook for it.
    """
    names = vars(eviction)
    original = names["eviction_cost"]
    if name == "no-stay":
        _let_stay_nowhere(world)
    elif name == "keepalive":
        _keep_alive(world)
    elif name in RULES:
        names["eviction_cost"] = _by_rule(world, RULES[name])
    try:
        yield
    finally:
        names["eviction_cost"] = original


def _by_rule(world: World, rule: Callable[[Sight], float]) -> Cost:
    pools = {id(pool.call_rate): pool for pool in world.machine.pools.values()}

    def cost(call_rate: CallRate, reload_s: float, now: float) -> float:
        pool = pools[id(call_rate)]
        function = world.functions[pool.key]
        return rule(Sight(pool, function, reload_s or UNKNOWN_RELOAD_S, now))

    return cost


def _let_stay_nowhere(world: World) -> None:
    """The product's rule without residency: idle replicas may be evicted as soon as ready."""
    book, names = world.machine._supply.evictor.candidates, vars(eviction)
    usual, residency_s = book.idle._of, names["RESIDENCY_S"]

    def at_once(pool: Pool, now: float) -> dict[str, Candidate]:
        names["RESIDENCY_S"] = 0.0
        try:
            return usual(pool, now)
        finally:
            names["RESIDENCY_S"] = residency_s

    book.idle._of = at_once


def _keep_alive(world: World) -> None:
    """No evictions: replicas only stop by their idle timer, and calls without a device wait."""
    book = world.machine._supply.evictor.candidates
    for known in (book.idle, book.resident, book.eventual):
        known._of = lambda *_: {}
