"""History of functions: cold starts, states, arrivals."""

from __future__ import annotations

from dataclasses import dataclass

from registry.model.hosts import LOCAL_HOST


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One cold start of a revision with its receipt."""

    namespace: str
    """Namespace of the function."""
    name: str
    """Name of the function."""
    number: int
    """Number of the revision."""
    replica: str
    """Id of the replica."""
    device_kind: str
    """Kind of its device: cpu or cuda."""
    at_s: float
    """Unix seconds of its end."""
    total_ms: float
    """Milliseconds from the decision to its end."""
    phases: dict[str, float]
    """Milliseconds by phase, in their order."""
    outcome: str = "ready"
    """"ready", or "failed: " and the reason."""
    host: str = LOCAL_HOST
    """Host of its device."""
    session: str = ""
    """Session that the replica serves with, "" if unknown."""
    devices: tuple[str, ...] = ()
    """Ids of its devices; empty in records of earlier releases."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about replicas."""

    at_s: float
    """Unix seconds."""
    text: str
    """The decision and its reason in words."""


@dataclass(frozen=True, slots=True)
class StateInterval:
    """The time that a revision's pool spent in one state."""

    namespace: str
    """Namespace of the function."""
    name: str
    """Name of the function."""
    number: int
    """Number of the revision."""
    state: str
    """State of the pool, as in `PoolEndpoints`."""
    reason: str
    """Why it was in that state."""
    from_s: float
    """Unix seconds of its begin."""
    to_s: float
    """Unix seconds of its end."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that arrived for a function in one minute."""

    namespace: str
    """Namespace of the function."""
    name: str
    """Name of the function."""
    minute_s: int
    """Unix seconds at which the minute begins."""
    count: int
    """Number of requests."""
