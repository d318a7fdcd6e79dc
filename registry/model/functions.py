"""Functions: the names that clients call, with their scaling and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

NAMESPACE = "default"
"""The only namespace at present; nevertheless part of every key."""
EXCHANGE_MAX_S = 600.0
"""Max seconds of an exchange where a function sets none; WebSockets then have no limit."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Number of replicas."""

    min: int = 0
    """Replicas that are kept ready at all times."""
    max: int = 1
    """Max replicas over all revisions."""
    idle_s: float = 300.0
    """Seconds without a request before a replica may be stopped."""
    spread: bool = True
    """Whether replicas prefer different hosts."""
    file_hosts: int = 1
    """Number of hosts that keep the files ahead of need."""
    preemptible: bool | None = None
    """Whether other users of a cluster may take the place of its replicas; None: if `min` is 0."""

    @property
    def is_preemptible(self) -> bool:
        """`preemptible`, or what that means where it is not set."""
        return self.min == 0 if self.preemptible is None else self.preemptible


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a function's calls."""

    timeout_s: float = 60.0
    """Max seconds of one run; of server functions only those in Python use it."""
    wait_s: float = 55.0
    """Max seconds that a call is held before it starts, unless it has `Prefer: wait`."""
    queue: int = 2000
    """Max calls that each gateway process holds."""
    body_mib: int = 64
    """Max MiB of a request's body; of server functions only those in Python use it."""
    retry: Literal["auto", "always", "never"] = "auto"
    """Whether a request that had started runs again after its replica died. "auto": unless the
    function has a handler; of a server function, if the method is idempotent."""


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Limits of a server function's exchanges."""

    concurrency: int = 32
    """Max exchanges at once per replica, over all gateways."""
    first_byte_s: float = 300.0
    """Max seconds from the request's sending to the answer's first byte."""
    stall_s: float = 0.0
    """Max seconds between two bytes of an answer; 0 for no limit."""
    max_s: float = EXCHANGE_MAX_S
    """Max seconds of a whole exchange; of a WebSocket only if it is not the default."""
    drain_s: float = EXCHANGE_MAX_S
    """Seconds that open exchanges have when their replica stops."""
    websockets: Literal["count", "ignore"] = "count"
    """"ignore": WebSockets take no slot and keep no replica awake."""

    @property
    def websocket_max_s(self) -> float:
        """Max seconds of a WebSocket, infinity for no limit."""
        return math.inf if self.max_s == EXCHANGE_MAX_S else self.max_s


@dataclass(frozen=True, slots=True)
class Health:
    """The [health] table: how the replicas of a server function are watched while they serve."""

    hang: Literal["replace", "report", "off"] = "replace"
    """What happens to a server that is ready and does not work any more."""
    counter: str | None = None
    """Metric of the server that rises as long as it works; "" for none, None for that of the
    program, if it is a known one."""
    metrics: str = "/metrics"
    """Path of the server's metrics."""
    step_s: float | None = None
    """Longest time in seconds in which a server that computes may show no progress, None for that
    of the program."""
    sample_every_s: float = 0.0
    """Seconds between two asks of an idle replica's golden sample, 0 for none."""


@dataclass(frozen=True, slots=True)
class Function:
    """A name that clients call. Changes of its settings do not create a revision."""

    name: str
    """Name, unique in its namespace; a valid DNS label."""
    revision: int
    """Number of the revision that serves calls."""
    scaling: Scaling = field(default_factory=Scaling)
    """Number of its replicas."""
    limits: Limits = field(default_factory=Limits)
    """Limits of its calls."""
    labels: dict[str, str] = field(default_factory=dict)
    """The owner's labels, for display."""
    namespace: str = NAMESPACE
    """Namespace of the name."""
    created_s: float = 0.0
    """Unix seconds."""
    exchange: ExchangeLimits | None = None
    """Limits of its exchanges; None unless it is a server function."""
    aliases: tuple[str, ...] = ()
    """Further names of its model at /v1, each of one function alone; a deploy or a rollback keeps
    them."""
    oip_name: str = ""
    """Its model's name in the Open Inference Protocol; "" for the function's own."""
    health: Health = field(default_factory=Health)
    """How its replicas are watched; only server functions have other than the defaults."""
