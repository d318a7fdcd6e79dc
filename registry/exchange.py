"""Messages between gateway and pool manager.

They are passed serialised even within one process, so that using a socket changes only the
transport.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from runtime_image.contract.link import VERSION


class Load(msgspec.Struct, array_like=True, frozen=True):
    """Load of one gateway worker on one revision."""

    queued: int
    in_flight: int
    oldest_wait_s: float

    @property
    def busy(self) -> int:
        """Requests that are held or in flight."""
        return self.queued + self.in_flight


NOTHING = Load(0, 0, 0.0)


class Demand(msgspec.Struct, frozen=True):
    """Message from a gateway worker to the manager.

    `full`: revisions that are not listed have no demand. `called` then lists the revisions that
    were called since the last full message; most of these calls have ended already. The demand
    expires when the worker disconnects, or after 3 s without a message.
    """

    worker: str
    seq: int
    full: bool
    revisions: dict[str, Load]
    called: list[str] = []


class SshRoute(msgspec.Struct, frozen=True, tag="ssh"):
    """Login by SSH with which gateway processes reach the sockets of a host; fields as in
    `registry.model.hosts.SshHost`."""

    address: str
    host_key: str = ""
    identity: str = ""
    epoch: int = 0
    """Rises whenever the manager has connected to the host anew."""


class TlsRoute(msgspec.Struct, frozen=True, tag="tls"):
    """What gateway processes need to dial replicas by TLS, each at its own address."""

    authority: str
    """The certificate of the server's authority, PEM."""
    certificate: str
    """That of gateways, PEM. It is renewed before it expires; links that are open stay."""
    key: str
    """Its key, PEM."""
    epoch: int = 0
    """That of the certificate."""

    def __repr__(self) -> str:
        """Tell the epoch alone: logs and errors show no key."""
        return f"TlsRoute(epoch={self.epoch})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Tell as much where rich shows it."""
        return [("epoch", self.epoch)]


HostRoute = SshRoute | TlsRoute
"""How gateway processes reach a host: one Struct for each kind of route, told apart by its tag.
Each has an `epoch`. A replica that listens on this machine needs none."""


_FOLDERS: Final = re.compile(r"(?:unix://|(?<![\w/:.]))/(?:[^\s/:'\"(),;]+/)+")
"""The folders of an absolute path in a text."""


class ReplicaEndpoint(msgspec.Struct, frozen=True):
    """A replica that accepts calls on the socket at `path`.

    `host` is "" for this machine. On any other host, `path` is a path there, or the address of a
    replica that listens for TLS (`runtime_image.contract.addresses`), and `greeting` is the
    text with which the replica begins every data link: a peer without it is not the replica.

    `limit` is the max number of concurrent requests over all gateways. `marks_started`: it reports
    which requests have started to run; otherwise every sent request counts as started. `phases` are
    the milliseconds of its cold start so far, without `first_run`. `is_server`: its link is that of
    a sidecar, which hands out connected sockets.
    """

    id: str
    path: str
    limit: int
    marks_started: bool
    devices: tuple[str, ...]
    """Ids of its devices."""
    phases: dict[str, float]
    is_server: bool = False
    host: str = ""
    greeting: str = ""
    link: int = VERSION
    """Version of the link that it speaks: an earlier one if an earlier server started it."""
    paused: bool = False
    """Calls for it are held, and those in flight end: it has no CPU slot to run on."""


def place_of(devices: tuple[str, ...]) -> str:
    """Return where a replica runs, for people: the id of its device, or "4 GPUs"; only GPUs are
    used together. "" without a device."""
    if len(devices) > 1:
        return f"{len(devices)} GPUs"
    return devices[0] if devices else ""


PoolState = Literal["cold", "waking", "warm", "parked", "draining", "failing"]


class PoolEndpoints(msgspec.Struct, frozen=True):
    """State of one pool for the gateways; "gone" is that of a removed revision.

    `ended` gives the cause of death of recent replicas that had served, by replica id, as text for
    clients. `kept_by` are the functions, as NAMESPACE/NAME, whose `min` keeps the devices that the
    pool waits for; callers may not read them.
    """

    replicas: list[ReplicaEndpoint]
    state: Literal[PoolState, "gone"]
    reason: str
    retry_after_s: float = 0.0
    log_tail: list[str] = []
    ended: dict[str, str] = {}
    kept_by: list[str] = []
    hung: list[str] = []
    """Those of `ended` that were replaced because they did not answer."""
    wake_s: float = 0.0
    """Seconds of a wake, as measured, while a replica sleeps or wakes; 0 if none does."""

    @property
    def told(self) -> str:
        """`reason` as clients get it: of paths only the last part, as they are this machine's."""
        return _FOLDERS.sub("", self.reason)


class Endpoints(msgspec.Struct, frozen=True):
    """Message from the manager to every gateway worker.

    `full`: pools that are not listed are gone. `hosts` are all other hosts with replicas, by name;
    the map is complete in every message.
    """

    seq: int
    full: bool
    pools: dict[str, PoolEndpoints]
    hosts: dict[str, HostRoute] = {}


class Expected(msgspec.Struct, array_like=True, frozen=True):
    """Expected duration of a revision's next cold start, as percentiles.

    `samples` is how many of its own cold starts the estimate is based on, 0 for a guess.
    """

    p10_s: float
    p50_s: float
    p90_s: float
    samples: int


_demand = msgspec.msgpack.Decoder(Demand)
_endpoints = msgspec.msgpack.Decoder(Endpoints)
encode = msgspec.msgpack.Encoder().encode


def decode_demand(data: bytes) -> Demand:
    """Decode a Demand. Raises msgspec.DecodeError on anything else."""
    return _demand.decode(data)


def decode_endpoints(data: bytes) -> Endpoints:
    """Decode an Endpoints message. Raises msgspec.DecodeError on anything else."""
    return _endpoints.decode(data)
