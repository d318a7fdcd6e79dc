"""Time limits of the states of replicas, in seconds."""

from __future__ import annotations

from math import inf

from pool_manager.core.state import PoolSpec, Replica, State
from runtime_image.contract import model
from runtime_image.contract.server import QUIESCE_S

START_S = 60.0
QUEUE_S = 600.0
"""Limit of a start's wait in the start queue. START_S counts from the end of that wait."""
GREETING_AFTER_ADOPTION_S = 10.0
LOAD_MIN_S = 60.0
LOAD_FACTOR = 10.0
LOAD_S_PER_GIB = 20.0
SERVER_MARGIN_S = 30.0
"""Added to `start_s`, within which the sidecar itself gives a server up and says why."""
VERIFICATION_S = 60.0
"""Limit of a trial's verification: the analysis of rows (30 s at most) and the comparison of runs,
which takes some seconds for each of up to three sessions. For a server: of its sample requests."""
DRAIN_S = 30.0
TERM_S = 5.0
"""Seconds between TERM and KILL. A server has its `stop_grace_s` in addition."""
RESUME_S = 30.0
"""Limit of the answer to a revoked soft drain."""
RELEASE_RETRY_S = 5.0


def load_limit_s(spec: PoolSpec) -> float:
    """Return the time limit of a load: max(60 s, 10 x the measured load, 20 s per GiB); for a
    server, its `start_s` and a margin."""
    if spec.is_server:
        return spec.start_s + SERVER_MARGIN_S
    return max(LOAD_MIN_S, LOAD_FACTOR * spec.load_s, LOAD_S_PER_GIB * spec.bundle_bytes / 2**30)


def drain_limit_s(replica: Replica, spec: PoolSpec) -> float:
    """Return the time limit of a drain. That of a server is `drain_s`, the time that its open
    exchanges have; a drain that it may refuse ends none, and takes a handshake with the gateways
    and the server's own end."""
    if not spec.is_server:
        return DRAIN_S
    return DRAIN_S + QUIESCE_S + spec.stop_grace_s if replica.if_idle else spec.drain_s


def term_limit_s(spec: PoolSpec) -> float:
    """Return the seconds between TERM and KILL."""
    return spec.stop_grace_s + TERM_S if spec.is_server else TERM_S


def state_limit_s(replica: Replica, spec: PoolSpec) -> float:
    """Return the seconds that the state just entered may last; infinite if it has no limit."""
    if replica.state is State.STANDBY and replica.role == "standby":
        return inf
    if replica.state in (State.STARTING, State.STANDBY):
        if replica.adopted:
            return GREETING_AFTER_ADOPTION_S
        return QUEUE_S if replica.state is State.STARTING else START_S
    if replica.state is State.LOADING:
        if replica.role != "trial":
            return load_limit_s(spec)
        return load_limit_s(spec) + VERIFICATION_S + model.patience_s(spec.bundle_bytes)
    if replica.state is State.DRAINING:
        return drain_limit_s(replica, spec)
    return inf
