"""How many replicas pools have, and how many they want. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pool_manager.core.host import Host
from pool_manager.core.pool import Pool


class Supplied(NamedTuple):
    """A pool, the replicas it wants, and those it has by their states."""

    pool: str
    wanted: int
    replicas: dict[str, int]


def supplied(host: Host) -> list[Supplied]:
    """Every pool that has replicas or wants some, the standbys' too. Trials are no pools that
    anybody calls."""
    keys = sorted(host.live.keys() | host.blocked)
    pools = (host.pools[key] for key in keys if key in host.pools)
    return [
        Supplied(pool.key, _wanted(pool), _states(pool))
        for pool in pools
        if pool.spec.role != "trial" and (pool.replicas or _wanted(pool))
    ]


def _wanted(pool: Pool) -> int:
    return pool.spec.max if pool.spec.role == "standby" else pool.wanted


def _states(pool: Pool) -> dict[str, int]:
    return dict(Counter(str(replica.state) for replica in pool.replicas.values()))
