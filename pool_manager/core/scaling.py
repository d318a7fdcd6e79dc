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


def wanted(spec: PoolSpec, load: Load) -> Wanted:
    """One at once from zero, then by load over target, between `min` and `max`.

    Scaling down is not decided here: a replica goes when it has been idle.
    """
    busy = load.queued + load.in_flight
    if spec.trial:
        return Wanted(1, "a deploy verifies it")
    if busy == 0:
        return Wanted(spec.min, f"no requests, min is {spec.min}")
    by_load = ceil(busy / spec.target)
    count = max(1, spec.min, min(by_load, spec.max))
    reason = f"{load.queued} held and {load.in_flight} in flight, {spec.target} per replica"
    if by_load > count:
        reason += f", max is {spec.max}"
    return Wanted(count, reason)
