"""The plan of an exchange: what its head and the function's settings say about it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gateway.dispatch.call import Priority
from gateway.metrics.key_times import KeyTime
from gateway.proxy.answering import Answering
from gateway.proxy.forwarding import addressed
from gateway.proxy.known_answers import KnownAnswers
from gateway.proxy.retries import Retry
from gateway.server_links import NO_META, ExchangeCall
from registry.model.functions import ExchangeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.dispatch.call import Data
    from gateway.proxy.fields import Field
    from gateway.proxy.ports import AnswerFilter
    from gateway.proxy.request_head import RequestHead
    from gateway.proxy.targets import FunctionTarget
    from gateway.upstream import UpstreamConnection
    from registry.errors import FnError


class State(Enum):
    """Progress of an exchange."""

    HELD = "held"
    OPEN = "open"
    ANSWERING = "answering"
    FAILING = "failing"
    TUNNEL = "tunnel"
    OVER = "over"


class ExchangePlan(NamedTuple):
    """Everything that is decided about an exchange when its head has arrived. Times in seconds.

    `websocket_key`: value of Sec-WebSocket-Key if the request is a WebSocket handshake, else None.
    `keeps`: the client's connection may serve another request. `body_s`: max time without a byte of
    the request's body. `retry`: the function's setting. `wakes`: the request may wake the function.
    `answers`: known answers to requests of this plan, None where nothing is remembered. `outer`,
    `public_host`: what a trusted proxy says, see `gateway.proxy.answering`. `key_time`: time of the
    calls with the key that the request was sent with. `filter`: of the answer. `dropped`: fields of
    the answer that the client does not get. `may_poison`: the body is refused after it has killed
    replicas. `idle_s`: time without data after which a WebSocket is quiet. `host`: as of
    `gateway.proxy.forwarding.Forwarding`. `offered`: subprotocols of a handshake to /v1, of which
    the server may choose; None elsewhere, where the client judges.
    """

    pool: str
    head: RequestHead
    target: FunctionTarget
    limits: ExchangeLimits
    wait_s: float
    queue_max: int
    priority: Priority
    is_pinned: bool = False
    is_free: bool = False
    websocket_key: bytes | None = None
    keeps: bool = True
    body_s: float = 30.0
    retry: Retry = "auto"
    wakes: bool = True
    answers: KnownAnswers | None = None
    outer: bytes = b""
    public_host: bytes = b""
    key_time: KeyTime = KeyTime("", "", "")
    filter: AnswerFilter | None = None
    dropped: frozenset[bytes] = frozenset()
    may_poison: bool = False
    idle_s: float = 300.0
    host: bytes = b""
    offered: tuple[bytes, ...] | None = None

    @property
    def key_id(self) -> str:
        """Id of the caller's key, "" without one."""
        return self.key_time.key_id

    def call(
        self,
        now: float,
        opened: Callable[[UpstreamConnection], None],
        done: Callable[[FnError], None],
        pieces: Callable[[], Iterable[Data]] | None,
    ) -> ExchangeCall:
        """Return the call that asks for a connection; `now` is monotonic seconds, `pieces` returns
        the request's body as far as it is kept, None unless the body may be refused."""
        return ExchangeCall(
            self.pool,
            NO_META,
            b"",
            now,
            now + self.wait_s,
            self.limits.max_s,
            self.priority,
            queue_max=self.queue_max,
            pinned=self.is_pinned,
            is_free=self.is_free,
            may_poison=self.may_poison,
            opened=opened,
            done=done,
            # What the sidecar knows of a WebSocket belongs to an id of its own.
            wants_fresh=self.retry == "never" or self.websocket_key is not None,
            pieces=pieces,
        )

    def answering(self, port: int, added: tuple[Field, ...], *, keeps: bool) -> Answering:
        """Return what is known about an answer of the server at TCP port `port`.

        `added`: fields of the gateway. `keeps`: the client's connection may stay open.
        """
        return Answering(
            self.target.prefix,
            self.head.fields.get(b"host"),
            self.head.minor,
            keeps,
            not self.target.path,
            added,
            outer=self.outer,
            public_host=self.public_host,
            port=port,
            dropped=self.dropped,
            server_host=addressed(self.host, port),
        )
