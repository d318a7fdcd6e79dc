"""Room for trials: whose replicas may make room for a deploy, and who holds the devices.

A deploy is less urgent than a call. Its trial takes the place of a replica that nobody calls, and
otherwise waits, for `PoolSpec.trial_wait_s`. A replica of the trial's own function is then drained,
called or not: the deploy replaces it anyway, and on the only device there is no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.cluster import Cluster
from pool_manager.core.ledger import Need
from pool_manager.core.placement import devices_by_preference
from pool_manager.core.pool import Pool
from pool_manager.core.state import Replica

STAGE: Final = "room"
"""The stage of a trial that ends for lack of room."""
CALLED_S: Final = 10.0
"""A function is being called until it has had no call for this long."""
HOLDERS_MAX: Final = 4
"""Max devices whose holders are named."""
_MINUTES_FROM_S: Final = 120.0


def is_called(pool: Pool, now: float) -> bool:
    """Whether a function is being called."""
    return now - pool.last_used_s < CALLED_S


def called(cluster: Cluster, now: float) -> set[str]:
    """Return the pools that are being called, whose replicas make no room for a trial."""
    return {key for key in cluster.live if is_called(cluster.pools[key], now)}


def is_over(pool: Pool, now: float) -> bool:
    """Whether a trial has waited for room for as long as it may."""
    since_s = pool.unserved_since_s
    return since_s is not None and now - since_s >= pool.spec.trial_wait_s


def own_candidates(cluster: Cluster, trial: Pool) -> CandidateTable:
    """Return the ready replicas of the function that a trial is for, without regard to its `min`:
    the one that has served longest is the cheapest."""
    found: dict[str, Candidate] = {}
    for key in cluster.live:
        pool = cluster.pools[key]
        if pool.spec.role == "serve" and _function(key) == _function(trial.key):
            ready = [one for one in pool.replicas.values() if one.is_ready]
            for one in ready:
                found[one.id] = Candidate(key, one.ready_s, len(ready))
    return CandidateTable.of(cluster.ledger, found)


def holders(cluster: Cluster, need: Need) -> str:
    """Return who holds the devices that a need might have, "" if nobody does."""
    return _listed(cluster, need, lambda replica: name_of(replica.pool))


def holders_since(cluster: Cluster, need: Need, now: float) -> str:
    """Return the same, with since when, and how long ago each was called."""

    def told(replica: Replica) -> str:
        pool = cluster.pools[replica.pool]
        held = f"{name_of(pool.key)} for {_span(now - (replica.ready_s or replica.since_s))}"
        used_s = max(pool.last_used_s, replica.last_used_s)
        return f"{held}, called {_span(now - used_s)} ago" if pool.spec.role == "serve" else held

    return _listed(cluster, need, told)


def trials(cluster: Cluster, need: Need) -> int:
    """Return how many of the devices that a need might have are in use by trials."""
    ledger = cluster.ledger
    live = (cluster.pools[key] for key in cluster.live)
    # Few pools are trials: the replicas of the others need not be looked at.
    tried = [one for pool in live if pool.spec.role == "trial" for one in pool.replicas.values()]
    # The device may be that of a host which was removed.
    taken = {id for one in tried for id in one.devices}
    return sum(ledger.fits_kind(device, need) for device in taken & ledger.devices.keys())


def no_room_text(cluster: Cluster, trial: Pool, need: Need, now: float) -> str:
    """Return why a trial that has waited long enough got no room, and what gets it some."""
    waited_s = now - (trial.unserved_since_s or now)
    held = holders_since(cluster, need, now)
    return (
        f"no device had room for the trial for {_span(waited_s)}: {held or trial.blocked};"
        " --evict takes a device from a function that is being called, whose calls are then held"
    )


def made_room_text(cluster: Cluster, trial: Pool, victims: Iterable[str], now: float) -> str:
    """Return that these replicas of its function make room for a trial that has waited long."""
    found = (cluster.find(id) for id in victims)
    names = sorted({name_of(one.pool) for one in found if one is not None})
    waited_s = now - (trial.unserved_since_s or now)
    who = " and ".join(names)
    return f"{who} made room for the trial after {_span(waited_s)}, its calls were held"


def name_of(key: str) -> str:
    """Return a pool as people name it: "web@3", or "a trial of web"."""
    name, _, revision = key.rpartition("/")[2].partition("@")
    return f"a trial of {name}" if revision.startswith("trial-") else f"{name}@{revision}"


def _listed(cluster: Cluster, need: Need, told: Callable[[Replica], str]) -> str:
    texts = []
    # Of a need for whole devices, those with replicas are meant, too.
    for device in devices_by_preference(replace(need, takes_rest=True), cluster.ledger):
        there = [one for one in cluster.on(device) if one.role != "standby" and not one.is_parked]
        if there and cluster.ledger.fits_kind(device, need):
            texts.append(f"{device} is held by {' and '.join(map(told, there))}")
    more = len(texts) - HOLDERS_MAX
    return "; ".join(texts[:HOLDERS_MAX]) + (f"; and {more} more" if more > 0 else "")


def _function(key: str) -> str:
    return key.partition("@")[0]


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTES_FROM_S else f"{seconds / 60:.0f} min"
