"""How many replicas a pool should have, and why."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from pool_manager.core.state import PoolSpec
from registry.exchange import Load


class Wanted(NamedTuple):
    """A number of replicas and its reason in words."""

    replicas: int
    reason: str


def wanted(spec: PoolSpec, load: Load, is_warm: bool) -> Wanted:
    """One at once from zero, then by load over target, between `min` and `max`.

    `is_warm`: a replica can serve. Until then nothing is known of how fast one replica works off
    what came, and where one cannot be loaded its copies cannot either. Scaling down is not
    decided here: a replica goes when it has been idle.
    """
    busy = load.queued + load.in_flight
    if spec.trial:
        return Wanted(1, "a deploy verifies it")
    if busy == 0:
        return Wanted(spec.min, f"no requests, min is {spec.min}")
    by_load = ceil(busy / spec.target)
    most = spec.max if is_warm else 1
    count = max(1, spec.min, min(by_load, most))
    reason = f"{load.queued} held and {load.in_flight} in flight, {spec.target} per replica"
    if by_load > count:
        reason += f", max is {spec.max}" if is_warm else ", none is ready yet"
    return Wanted(count, reason)
