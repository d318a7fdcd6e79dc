"""Messages between supervisor and gateway processes, as msgpack.

Messages of one direction are ordered: a message follows all that it depends on. An unknown message
is an error, as both sides run the same release.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.http.connected import Connections
from gateway.metrics.counters import Labels, SampleExemplar
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from gateway.oip.statistics import RevisionStatistics
from gateway.settings import GatewaySettings
from registry.catalog import Deployed
from registry.exchange import Expected
from registry.model.keys import Key
from registry.openness import Openness
from registry.upstream_keys import UpstreamKey
from registry.usage import UsageRow


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Message whose tag is its class's name."""


class Welcome(_Message, frozen=True):
    """Down, first: the worker's name and configuration. The port in `settings` is the shared one.

    `passing` is the Unix socket for requests that are not calls; `keeps_buffers`: call
    `keep_large_buffers`; `cookie_secret` signs cookies of pages.
    """

    name: str
    settings: GatewaySettings
    log_format: Literal["human", "json"]
    passing: str
    keeps_buffers: bool
    cookie_secret: bytes = b""


class FunctionNow(msgspec.Struct, frozen=True):
    """Current state of a function with all its revisions; no revisions if it was removed."""

    namespace: str
    name: str
    revisions: list[Deployed]


class Functions(_Message, frozen=True):
    """Down: the current state of these functions; all others are unchanged."""

    functions: list[FunctionNow]


class KeyNow(_Message, frozen=True):
    """Down: a key was added (`is_let_in`) or removed. The admin token is one."""

    key: Key
    is_let_in: bool


class OpennessNow(_Message, frozen=True):
    """Down: who may call without a key. Nobody, before this message."""

    openness: Openness


class UpstreamKeyNow(_Message, frozen=True):
    """Down: a key for functions' servers has this value now, or is needed no more (not `is_kept`).
    It precedes the revisions that need it."""

    key: UpstreamKey
    is_kept: bool


class Estimates(_Message, frozen=True):
    """Down: expected durations of the next cold starts, by pool."""

    expected: dict[str, Expected]


class Began(_Message, frozen=True):
    """Down, once: the full initial state has been sent."""


class Pools(_Message, frozen=True):
    """Down: the manager's Endpoints, serialised."""

    endpoints: bytes


class Reach(_Message, frozen=True):
    """Down: answer with `Reached` once everything sent before is applied."""

    number: int


class Reckon(_Message, frozen=True):
    """Down: answer with the ledger of accepted requests."""

    number: int


class AskConnected(_Message, frozen=True):
    """Down: answer with the open exchanges of a function."""

    number: int
    namespace: str
    name: str


class TellStatistics(_Message, frozen=True):
    """Down: the statistics of revisions, as asked."""

    number: int
    statistics: list[RevisionStatistics]


class LoadEnded(_Message, frozen=True):
    """Down: the model of `AskLoad` is resident, or the error, whose code is not ""."""

    number: int
    code: str = ""
    message: str = ""
    retry_after_s: float | None = None
    detail: dict[str, Any] = {}
    admin_detail: dict[str, Any] = {}


class Stop(_Message, frozen=True):
    """Down: accept no more requests, finish and exit."""


class Wants(_Message, frozen=True):
    """Up: this gateway's Demand, serialised."""

    demand: bytes


class Reached(_Message, frozen=True):
    """Up: everything sent before that `Reach` is applied."""

    number: int


class Reckoned(_Message, frozen=True):
    """Up: the ledger (`gateway.metrics.ledger`) in the loop's turn that received `Reckon`, and the
    newest exemplars of this process's histograms."""

    number: int
    accepted: float
    ended: dict[str, float]
    held: dict[str, int]
    in_flight: dict[str, int]
    exemplars: list[SampleExemplar]


class TellConnected(_Message, frozen=True):
    """Up: the open exchanges of a function, as asked."""

    number: int
    connections: Connections


class AskStatistics(_Message, frozen=True):
    """Up: answer with the statistics of these revisions, in this order."""

    number: int
    pools: list[str]


class AskLoad(_Message, frozen=True):
    """Up: wake a revision, and answer when it is resident, at most `wait_s` later."""

    number: int
    namespace: str
    ref: str
    wait_s: float


class LeaveLoad(_Message, frozen=True):
    """Up: nobody waits for the answer to that `AskLoad` any more."""

    number: int


class AskUnload(_Message, frozen=True):
    """Up: let the replicas of a function stop as soon as they are idle."""

    namespace: str
    name: str


class Ready(_Message, frozen=True):
    """Up, once: calls are accepted."""


class Failed(_Message, frozen=True):
    """Up: this worker cannot serve, with the reason."""

    reason: str


class Arrived(msgspec.Struct, array_like=True, frozen=True):
    """Number of requests that arrived for a function."""

    namespace: str
    name: str
    count: int


class Beat(_Message, frozen=True):
    """Up, every second: number of background tasks, and the arrivals, responses, failures and usage
    since the last beat."""

    tasks: int
    arrived: list[Arrived]
    answered: list[RateSample]
    failures: list[Failure] = []
    used: list[UsageRow] = []


class Woken(_Message, frozen=True):
    """Up: requests of this worker, such as `request`, waited for this replica's cold start. Phases
    in milliseconds."""

    namespace: str
    function: str
    replica: str
    phases: dict[str, float]
    request: Labels | None = None


class Finished(_Message, frozen=True):
    """Up, after Stop: every accepted call is answered."""


Down = (
    Welcome
    | Functions
    | KeyNow
    | OpennessNow
    | UpstreamKeyNow
    | Estimates
    | Began
    | Pools
    | Reach
    | Reckon
    | AskConnected
    | TellStatistics
    | LoadEnded
    | Stop
)
Up = (
    Wants
    | Reached
    | Reckoned
    | TellConnected
    | AskStatistics
    | AskLoad
    | LeaveLoad
    | AskUnload
    | Ready
    | Failed
    | Beat
    | Woken
    | Finished
)

_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
encode = msgspec.msgpack.Encoder().encode


def decode_down(data: bytes) -> Down:
    """Decode a message of the supervisor. Raises msgspec.DecodeError if it is invalid."""
    return _down.decode(data)


def decode_up(data: bytes) -> Up:
    """Decode a message of a worker. Raises msgspec.DecodeError if it is invalid."""
    return _up.decode(data)
