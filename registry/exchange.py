"""The two plain messages between gateway and pool manager.

They are passed serialised even inside one process, so that a socket changes only the transport.
"""

from __future__ import annotations

import msgspec


class Load(msgspec.Struct, array_like=True, frozen=True):
    """What one gateway worker has for one revision."""

    queued: int
    in_flight: int
    oldest_wait_s: float

    @property
    def busy(self) -> int:
        """Requests that are held or in flight."""
        return self.queued + self.in_flight


NOTHING = Load(0, 0, 0.0)


class Demand(msgspec.Struct, frozen=True):
    """Gateway worker -> manager. `full`: revisions not named have no demand; then `called` names
    those that were called since the last full one, most of which are over already.

    It ends with the worker's connection, or after 3 s of silence.
    """

    worker: str
    seq: int
    full: bool
    revisions: dict[str, Load]
    called: list[str] = []


class ReplicaEndpoint(msgspec.Struct, frozen=True):
    """A replica that may be called over the Unix socket at `path`.

    `limit` is how many requests it takes at once over all gateways. `marks_started`: it says which
    requests have begun to run; otherwise whatever was sent counts as started. `phases` are the
    milliseconds of its cold start so far, `first_run` excepted.
    """

    id: str
    path: str
    limit: int
    marks_started: bool
    device: str
    phases: dict[str, float]


class PoolEndpoints(msgspec.Struct, frozen=True):
    """What a gateway may know of one pool. `state` is cold, waking, warm, draining or failing.

    `ended` says how the last replicas died that had served, by their ids, in words for callers.
    """

    replicas: list[ReplicaEndpoint]
    state: str
    reason: str
    retry_after_s: float = 0.0
    log_tail: list[str] = []
    ended: dict[str, str] = {}


class Endpoints(msgspec.Struct, frozen=True):
    """Manager -> every gateway worker. `full`: pools not named are gone."""

    seq: int
    full: bool
    pools: dict[str, PoolEndpoints]


class Expected(msgspec.Struct, array_like=True, frozen=True):
    """How long the next cold start of a revision takes: a tenth, half and nine tenths take no
    longer. `samples` is how many of its own cold starts say so, 0 for a guess."""

    p10_s: float
    p50_s: float
    p90_s: float
    samples: int


_demand = msgspec.msgpack.Decoder(Demand)
_endpoints = msgspec.msgpack.Decoder(Endpoints)
encode = msgspec.msgpack.Encoder().encode


def decode_demand(data: bytes) -> Demand:
    """Raises msgspec.DecodeError on anything that is no Demand."""
    return _demand.decode(data)


def decode_endpoints(data: bytes) -> Endpoints:
    """Raises msgspec.DecodeError on anything that is no Endpoints."""
    return _endpoints.decode(data)
