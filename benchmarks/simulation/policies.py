"""Eviction policies: the product's rule, and others to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from admin.advice.load_model import Function
from benchmarks.simulation.world import World
from pool_manager.core import eviction
from pool_manager.core.candidates import Candidate
from pool_manager.core.eviction import CandidateSet
from pool_manager.core.ledger import Need
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
POLICIES = ("fngate", "no-stay", "keepalive", "idle-only", "no-claim", "strict-order", *RULES)


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
    elif name == "idle-only":
        _spare_the_busy(world)
    elif name == "no-claim":
        world.machine._supply.evictor._claim = lambda _pool, _need: None
    elif name == "strict-order":
        _keep_the_order(world)
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
    _spare(book.idle, book.resident, book.brief, book.eventual)


def _spare_the_busy(world: World) -> None:
    """No turns: only idle replicas make room, and no device is kept until a busy one has left."""
    book = world.machine._supply.evictor.candidates
    _spare(book.resident, book.brief, book.eventual)


def _keep_the_order(world: World) -> None:
    """No pool gets a device while another one has waited for longer, wherever that device is; only
    devices that are reserved for a pool stay its own."""
    cluster = world.machine.cluster
    ledger = cluster.ledger
    usual = ledger.fits_kind

    def fits_kind(device: str, need: Need) -> bool:
        if device not in ledger.reservations:
            others = [cluster.need(cluster.pools[key]) for key in cluster.blocked]
            turns = ((other.unserved_since_s, other.pool) for other in others)
            if any(turn < (need.unserved_since_s, need.pool) for turn in turns):
                return False
        return usual(device, need)

    ledger.fits_kind = fits_kind


def _spare(*sets: CandidateSet) -> None:
    """Make no replica a candidate of these sets."""
    for known in sets:
        known._of = lambda *_: {}
