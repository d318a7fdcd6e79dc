"""How long each state of a replica may last."""

from __future__ import annotations

from pool_manager.core.state import PoolSpec, Replica, State
from runtime_image.contract import prepared

START_S = 60.0
LINE_S = 600.0
"""A start may stand in line for so long; its own time counts from when it has begun."""
GREETING_AFTER_ADOPTION_S = 10.0
LOAD_MIN_S = 60.0
LOAD_FACTOR = 10.0
LOAD_S_PER_GIB = 20.0
CHECKS_S = 60.0
"""Of a trial: the analysis of its model's rows (30 s at most) and the comparison of runs, which has
some seconds for each of up to three sessions."""
DRAIN_S = 30.0
TERM_S = 5.0
"""Between TERM and KILL."""


def load_deadline_s(spec: PoolSpec) -> float:
    """max(60 s, 10 x the measured load, 20 s per GiB): idle time has no part in it."""
    return max(LOAD_MIN_S, LOAD_FACTOR * spec.load_s, LOAD_S_PER_GIB * spec.bundle_bytes / 2**30)


def patience_s(replica: Replica, spec: PoolSpec) -> float:
    """Seconds that the state just entered may last; infinite where nothing presses."""
    if replica.state is State.STANDBY and replica.role == "standby":
        return float("inf")
    if replica.state in (State.STARTING, State.STANDBY):
        if replica.adopted:
            return GREETING_AFTER_ADOPTION_S
        return LINE_S if replica.state is State.STARTING else START_S
    if replica.state is State.LOADING:
        if replica.role != "trial":
            return load_deadline_s(spec)
        return load_deadline_s(spec) + CHECKS_S + prepared.patience_s(spec.bundle_bytes)
    if replica.state is State.DRAINING:
        return DRAIN_S
    return float("inf")
