"""What supervisor and gateway processes say to each other, as msgpack.

An order holds per direction: whatever a message depends on was sent before it. Something unknown
is an error, for both sides are of one release.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.metrics.counters import Labels, SampleExemplar
from gateway.metrics.requests import RateSample
from gateway.observing.errors import Failure
from gateway.settings import GatewaySettings
from registry.catalog import Deployed
from registry.exchange import Expected
from registry.model import Key


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """One message; its class's name is its tag."""


class Welcome(_Message, frozen=True):
    """Down, first: who the worker is and how it is to serve. The port in `settings` is the one to
    share.

    `passing` is the Unix socket of whatever is not a call; `token_sha256` the admin token's
    fingerprint; `keeps_buffers` whether the C library is to keep the memory of large buffers.
    """

    name: str
    settings: GatewaySettings
    log_format: Literal["human", "json"]
    token_sha256: str
    passing: str
    keeps_buffers: bool


class FunctionNow(msgspec.Struct, frozen=True):
    """A function as it is now, with all its revisions; none where it is gone."""

    namespace: str
    name: str
    revisions: list[Deployed]


class Functions(_Message, frozen=True):
    """Down: these functions are so now; of others nothing is said."""

    functions: list[FunctionNow]


class KeyNow(_Message, frozen=True):
    """Down: a key is let in, or is no longer."""

    key: Key
    is_let_in: bool


class Estimates(_Message, frozen=True):
    """Down: what the next cold starts of pools take."""

    expected: dict[str, Expected]


class Began(_Message, frozen=True):
    """Down, once: everything there is at present was said."""


class Pools(_Message, frozen=True):
    """Down: the manager's Endpoints, serialised."""

    endpoints: bytes


class Reach(_Message, frozen=True):
    """Down: say when everything sent before this is in force."""

    number: int


class Reckon(_Message, frozen=True):
    """Down: say where every accepted request is."""

    number: int


class Stop(_Message, frozen=True):
    """Down: accept nothing more, finish and exit."""


class Wants(_Message, frozen=True):
    """Up: this gateway's Demand, serialised."""

    demand: bytes


class Reached(_Message, frozen=True):
    """Up: everything sent before that Reach is in force."""

    number: int


class Reckoned(_Message, frozen=True):
    """Up: the ledger (`gateway.metrics.ledger`) in the turn in which that Reckon came, and the
    newest exemplars of this process's histograms."""

    number: int
    accepted: float
    ended: dict[str, float]
    held: dict[str, int]
    in_flight: dict[str, int]
    exemplars: list[SampleExemplar]


class Ready(_Message, frozen=True):
    """Up, once: calls are accepted."""


class Failed(_Message, frozen=True):
    """Up: this worker cannot serve, and why."""

    reason: str


class Arrived(msgspec.Struct, array_like=True, frozen=True):
    """So many requests came for a function."""

    namespace: str
    name: str
    count: int


class Beat(_Message, frozen=True):
    """Up, every second: how much goes on in the background, what came, what was answered and what
    went wrong since the last."""

    tasks: int
    arrived: list[Arrived]
    answered: list[RateSample]
    failures: list[Failure] = []


class Woken(_Message, frozen=True):
    """Up: requests here waited for this replica's cold start, one of them being `request`. Phases
    in milliseconds."""

    namespace: str
    function: str
    replica: str
    phases: dict[str, float]
    request: Labels | None = None


class Finished(_Message, frozen=True):
    """Up, after Stop: every accepted call is answered."""


Down = Welcome | Functions | KeyNow | Estimates | Began | Pools | Reach | Reckon | Stop
Up = Wants | Reached | Reckoned | Ready | Failed | Beat | Woken | Finished

_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
encode = msgspec.msgpack.Encoder().encode


def decode_down(data: bytes) -> Down:
    """Raises msgspec.DecodeError on anything that a supervisor would not say."""
    return _down.decode(data)


def decode_up(data: bytes) -> Up:
    """Raises msgspec.DecodeError on anything that a worker would not say."""
    return _up.decode(data)
