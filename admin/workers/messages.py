"""The gateway protocol: messages between a server and its gateways, and their encoding.

Both ends begin with `Hello`, which has the same form in every version. The server then sends the
whole state, and each change after it. Messages of one direction are ordered: a message follows all
that it depends on. An unknown message is an error, as both ends speak the same version.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar, get_args

import msgspec

from gateway.http.connected import Connections
from gateway.metrics.counters import Labels, SampleExemplar
from gateway.metrics.ledger import Balance
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

VERSION: Final = 5
"""Rises with every change of these messages or of what is in them: `tests/data/surface.txt` has
a digest of both, and `make surface` refuses another one for the same version."""
Name = tuple[str, str]
"""Namespace and name of a function."""
T_co = TypeVar("T_co", covariant=True)


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Message whose tag is its class's name."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Both ways, first. Only fields may be added, and the other end may ignore them."""

    version: int
    """Version of the protocol that the sender speaks."""
    release: str
    """The sender's release, for people."""


class Welcome(_Message, frozen=True):
    """Down, first: the gateway's name and configuration."""

    name: str
    settings: GatewaySettings
    """The port is the shared one, if `is_shared`."""
    log_format: Literal["human", "json"]
    passing: str
    """Unix socket for requests that are not calls; "" in the server's own process."""
    keeps_buffers: bool
    """Whether to call `keep_large_buffers`."""
    is_shared: bool
    """Whether other gateways use the same ports and the same access log."""
    cookie_secret: bytes = b""
    """What signs cookies of pages."""


class Keys(_Message, frozen=True):
    """Down: keys that were removed, keys that are let in, and who may call without one. The admin
    token is a key. Nobody may call before the first message."""

    let_in: list[Key]
    removed: list[Key]
    openness: Openness
    is_whole: bool = False
    """Whether all keys that are not in `let_in` are removed."""


class UpstreamKeysNow(_Message, frozen=True):
    """Down: keys for functions' servers. They precede the revisions that need them."""

    kept: list[UpstreamKey]
    forgotten: list[UpstreamKey]
    """Those that are needed no more; they have no value."""
    is_whole: bool = False
    """Whether all keys that are not in `kept` are forgotten."""


class FunctionNow(msgspec.Struct, frozen=True):
    """Current state of a function."""

    namespace: str
    name: str
    revisions: list[Deployed]
    """All of them; none if the function was removed."""


class Functions(_Message, frozen=True):
    """Down: the current state of these functions; all others are unchanged."""

    functions: list[FunctionNow]
    existing: list[Name] | None = None
    """All functions that exist, if the whole state follows: any other was removed."""


class Estimates(_Message, frozen=True):
    """Down: expected durations of the next cold starts, by pool."""

    expected: dict[str, Expected]


class Began(_Message, frozen=True):
    """Down, once per stream: the whole state has been sent."""


class Pools(_Message, frozen=True):
    """Down: the manager's Endpoints, serialised."""

    endpoints: bytes


class Stop(_Message, frozen=True):
    """Down: accept no more requests, finish and exit."""


class Wants(_Message, frozen=True):
    """Up: this gateway's Demand, serialised."""

    demand: bytes


class Ready(_Message, frozen=True):
    """Up, on each stream: calls are accepted on this port."""

    port: int


class Failed(_Message, frozen=True):
    """Up: this gateway cannot serve, with the reason and its number in errno(3), 0 for none."""

    reason: str
    errno: int = 0


class Finished(_Message, frozen=True):
    """Up, after Stop: every accepted call is answered."""


class Beat(_Message, frozen=True):
    """Both ways, every second: the sender lives."""


class Question(msgspec.Struct, Generic[T_co], frozen=True, tag=True, forbid_unknown_fields=True):
    """What an `Ask` asks for; T_co is the type of the answer. "To add a worker message" in
    design.md says how to add one."""

    at_once: ClassVar[int] = 1000
    """Max questions of this kind that one end has open."""
    answer_s: ClassVar[float] = 1.0
    """Max seconds that the asking end waits."""

    @property
    def within_s(self) -> float:
        """Max seconds that the asking end waits for the answer to this question."""
        return self.answer_s


class Applied(Question[None], frozen=True):
    """Down: answer once everything sent before is applied."""

    answer_s = 2.0


class Report(Question[None], frozen=True):
    """Down: send the Demand of all pools, then answer."""


class LedgerNow(msgspec.Struct, frozen=True):
    """Ledger of a gateway in one turn of its loop."""

    balance: Balance
    exemplars: list[SampleExemplar]
    """The newest exemplars of its histograms."""


class ReadLedger(Question[LedgerNow], frozen=True):
    """Down: the ledger of accepted requests."""


class ListConnections(Question[Connections], frozen=True):
    """Down: the open exchanges of a function."""

    namespace: str
    name: str


class Arrived(msgspec.Struct, array_like=True, frozen=True):
    """Number of requests that arrived for a function."""

    namespace: str
    name: str
    count: int


class Woken(msgspec.Struct, array_like=True, frozen=True):
    """Requests of this gateway, such as `request`, waited for this replica's cold start."""

    namespace: str
    function: str
    replica: str
    phases: dict[str, float]
    """Milliseconds by phase."""
    request: Labels | None = None


class Activity(Question[None], frozen=True):
    """Up, every second: what happened since the last one; answered once it is counted."""

    number: int
    """1 for a gateway's first one, and one more for each further one. One without an answer is sent
    again under its number, also on the next stream: it is counted once."""
    tasks: int = 0
    """Number of background tasks of this process, 0 in the server's own."""
    answered: list[RateSample] = []
    failures: list[Failure] = []
    reasons: list[str] = []
    """Current reasons for `/readyz` to report the server as degraded."""
    arrived: list[Arrived] = []
    used: list[UsageRow] = []
    woken: list[Woken] = []

    at_once = 1
    answer_s = 5.0


class ReadStatistics(Question[list[RevisionStatistics]], frozen=True):
    """Up: the statistics of these revisions, in this order."""

    pools: list[str]

    at_once = 64
    answer_s = 5.0


class LoadModel(Question[None], frozen=True):
    """Up: wake a revision; answered when it is resident, at most `wait_s` later."""

    namespace: str
    ref: str
    wait_s: float

    at_once = 10_000
    answer_s = 5.0

    @property
    def within_s(self) -> float:
        """The client's wait, and a grace in which the server can say why it is over."""
        return self.wait_s + self.answer_s


class UnloadModel(Question[None], frozen=True):
    """Up: let the replicas of a function stop as soon as they are idle."""

    namespace: str
    name: str


AnyQuestion = (
    Applied
    | Report
    | ReadLedger
    | ListConnections
    | Activity
    | ReadStatistics
    | LoadModel
    | UnloadModel
)


class Refusal(msgspec.Struct, frozen=True):
    """A `registry.errors.FnError` instead of an answer; the fields are the error's."""

    code: str
    message: str
    retry_after_s: float | None = None
    detail: dict[str, Any] = {}
    admin_detail: dict[str, Any] = {}


class Ask(_Message, frozen=True):
    """Both ways: answer with an `Answer` of this number."""

    number: int
    question: AnyQuestion


class Answer(_Message, frozen=True):
    """Both ways: the answer to the other end's question of this number, or the error."""

    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    """Encoded answer, of the question's type; nil by default."""
    error: Refusal | None = None


class Leave(_Message, frozen=True):
    """Both ways: the sender waits no more for the answer to its question of this number."""

    number: int


State = Keys | UpstreamKeysNow | Functions | Estimates
"""What a gateway's copy of the server's state is kept by."""
Exchanged = Ask | Answer | Leave
Down = Hello | Beat | Welcome | State | Began | Pools | Stop | Exchanged
Up = Hello | Beat | Wants | Ready | Failed | Finished | Exchanged
Message = Down | Up

_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
ANSWERS: Final[dict[type[Question[Any]], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(get_args(kind.__orig_bases__[0])[0])
    for kind in get_args(AnyQuestion)
}
"""Decoder of the answer to each kind of question."""
encode = msgspec.msgpack.Encoder().encode


def decode_down(data: bytes) -> Down:
    """Decode a message of the server. Raises msgspec.DecodeError if it is invalid."""
    return _down.decode(data)


def decode_up(data: bytes) -> Up:
    """Decode a message of a gateway. Raises msgspec.DecodeError if it is invalid."""
    return _up.decode(data)


def decode_answer(question: type[Question[T_co]], value: msgspec.Raw) -> T_co:
    """Decode the answer to a question. Raises msgspec.DecodeError if it is of another type."""
    answer: T_co = ANSWERS[question].decode(value)
    return answer


@cache
def own_hello() -> Hello:
    """Return what this process says first; reading its release takes milliseconds."""
    return Hello(VERSION, version("fngate"))


def check_version(hello: Hello, own: str, other: str) -> str:
    """Return "" if the other end speaks this version, else why the two must part. `own` and `other`
    are what the two ends are called."""
    if hello.version == VERSION:
        return ""
    return (
        f"this {own} speaks version {VERSION} of the gateway protocol, the {other} (release"
        f" {hello.release[:80]}) version {hello.version}: stop the server and start it again"
    )
