"""The plan of an exchange: what its head and the function's settings say about it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gateway.dispatch.call import Priority
from gateway.proxy.retries import Retry
from gateway.server_links import NO_META, ExchangeCall
from registry.model import ExchangeLimits

if TYPE_CHECKING:
    from collections.abc import Callable

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

    `request`: the head to send to the server. `websocket_key`: value of Sec-WebSocket-Key if the
    request is a WebSocket handshake, else None. `keeps`: the client's connection may serve another
    request. `body_s`: max time without a byte of the request's body. `retry`: the function's
    setting. `key_id`: of the key that the request was sent with. `began_s`: Unix seconds.
    """

    pool: str
    head: RequestHead
    target: FunctionTarget
    request: bytes
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
    key_id: str = ""
    began_s: float = 0.0

    def call(
        self,
        now: float,
        opened: Callable[[UpstreamConnection], None],
        done: Callable[[FnError], None],
    ) -> ExchangeCall:
        """Return the call that asks for a connection; `now` is monotonic seconds."""
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
            opened=opened,
            done=done,
        )

    @property
    def host(self) -> bytes:
        """The client's Host header."""
        return self.head.fields.get(b"host")

    @property
    def is_bare(self) -> bool:
        """Whether the client's target was the function's name alone."""
        return not self.target.path
