"""The data of one exchange, and what does not depend on the order of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from gateway.proxy import retries
from gateway.proxy.answer_reader import AnswerReader
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.framing import CHUNKED, LAST_CHUNK, BodyKind, Framing, encode_chunk
from gateway.proxy.kept_prefix import KeptPrefix, Memory
from gateway.proxy.plan import State
from gateway.proxy.ports import FilterMode
from gateway.proxy.retries import Loss
from gateway.proxy.tunnel import Tunnel
from gateway.proxy.websocket import GOING_AWAY, close_frame

if TYPE_CHECKING:
    from gateway.proxy.plan import ExchangePlan
    from gateway.proxy.ports import AnswerFilter, ClientSide, ExchangeDelivery, Journal
    from gateway.proxy.response_head import ResponseHead
    from gateway.server_links import ExchangeCall
    from gateway.upstream import UpstreamConnection
    from registry.errors import FnError


ASLEEP: Final = "the function went to sleep: no data had passed here"
"""Why a quiet WebSocket was closed."""
STOPPED: Final = "the function's replica was stopped"
"""Why another one was."""


class ExchangeData(ABC):
    """One exchange between `client` and a server of the function; see `Exchange`."""

    __slots__ = (
        "_answer",
        "_bytes_out",
        "_call",
        "_client",
        "_client_ended",
        "_deadlines",
        "_delivery",
        "_filter",
        "_is_client_full",
        "_is_encoding",
        "_is_reused",
        "_is_rewriting",
        "_is_upstream_full",
        "_journal",
        "_keeps",
        "_kept",
        "_open",
        "_plan",
        "_reader",
        "_request",
        "_request_bytes",
        "_sends",
        "_tunnel",
        "_unsent",
        "_upstream",
        "_upstream_ended",
        "is_request_whole",
        "state",
    )

    def __init__(  # noqa: PLR0913 - its plan and its collaborators
        self,
        plan: ExchangePlan,
        request: bytes,
        client: ClientSide,
        delivery: ExchangeDelivery,
        memory: Memory,
        journal: Journal,
        open_exchanges: set[Any],
    ) -> None:
        """`request`: the head for the server. `open_exchanges` has this from `start` to its end."""
        self._open = open_exchanges
        self._plan = plan
        self._request = request
        self._client = client
        self._delivery = delivery
        self._journal = journal
        self._kept = KeptPrefix(memory, self._on_evicted)
        self._call: ExchangeCall | None = None
        self._upstream: UpstreamConnection | None = None
        self._answer: ResponseHead | None = None
        self._reader = AnswerReader(plan.head.method)
        self._deadlines = Deadlines(plan.limits, plan.body_s)
        self._request_bytes = self._bytes_out = 0
        self._client_ended = self._upstream_ended = False
        self._is_client_full = self._is_upstream_full = self._is_reused = False
        self._sends = self._unsent = 0
        self._keeps = plan.keeps
        self._filter: AnswerFilter | None = None
        is_handshake = plan.websocket_key is not None
        self._tunnel = Tunnel(plan.idle_s) if is_handshake else None
        self._is_rewriting = self._is_encoding = False
        self.is_request_whole = plan.head.framing.is_empty
        """Whether the client has sent the whole request."""
        self.state = State.HELD

    @property
    def facts(self) -> tuple[ExchangePlan, ResponseHead | None, ExchangeCall | None]:
        """The plan, the head of the answer once it has begun, and the call."""
        return self._plan, self._answer, self._call

    @property
    def key_id(self) -> str:
        """Id of the caller's key, "" without one."""
        return self._plan.key_id

    @property
    def is_held(self) -> bool:
        """Whether the request waits for a connection to its server."""
        return self.state is State.HELD

    @property
    def is_over(self) -> bool:
        """Whether the exchange has ended."""
        return self.state is State.OVER

    def _begin_tunnel(self, head: bytes, now: float) -> None:
        """Send the head that opens a WebSocket; bytes of both sides follow."""
        assert self._tunnel is not None
        assert self._call is not None
        self.state = State.TUNNEL
        self._tunnel.begin(now)
        self._deadlines.begin_tunnel()
        self._delivery.tell_tunnel(self._call, is_quiet=False)
        self._client.write(head)
        self._client.begin_tunnel()

    def _pass_frames(self, data: bytes) -> None:
        """Pass on bytes of the server of a WebSocket."""
        assert self._tunnel is not None
        self._tunnel.from_server.feed(data)
        self._note_use(self._tunnel)
        self._bytes_out += len(data)
        self._client.write(data)

    def _note_use(self, tunnel: Tunnel) -> None:
        """Have a quiet WebSocket count as an exchange again, once data has passed."""
        if tunnel.is_quiet and tunnel.has_moved:
            self._check_quiet(tunnel, monotonic())

    def _check_quiet(self, tunnel: Tunnel, now: float) -> None:
        """Tell the delivery if a WebSocket has become quiet, or is in use again."""
        was_quiet, call = tunnel.is_quiet, self._call
        if tunnel.check(now) is not was_quiet and call is not None:
            self._delivery.tell_tunnel(call, is_quiet=tunnel.is_quiet)

    def _say_closed(self, code: int, reason: str) -> bool:
        """Send the client of a WebSocket the frame that says why it ends; return whether it could
        be sent: neither in the middle of another frame nor after the server's own."""
        tunnel = self._tunnel
        if tunnel is None or self.state is not State.TUNNEL:
            return False
        if tunnel.from_server.is_closed or not tunnel.from_server.is_between:
            return False
        self._client.write(close_frame(code, reason))
        return True

    def _say_stopped(self) -> bool:
        """Tell the client of a WebSocket whose replica stops; return whether that could be told."""
        call, tunnel = self._call, self._tunnel
        if call is None or tunnel is None or not self._delivery.is_stopping(call):
            return False
        is_told = self._say_closed(GOING_AWAY, ASLEEP if tunnel.is_quiet else STOPPED)
        if is_told:
            self._journal.closed(self._plan, is_quiet=tunnel.is_quiet)
        return is_told

    @abstractmethod
    def _on_evicted(self, error: FnError) -> None:
        """Handle the loss of the memory of the kept prefix."""

    def _decide(
        self, *, died: bool = False, is_unsent: bool = False
    ) -> retries.Resend | retries.Fail:
        """Decide about a lost connection. `died`: the server has ended, as is known otherwise than
        by the link to its replica. `is_unsent`: the request was not sent."""
        call = self._call
        assert call is not None
        return retries.decide(
            Loss(
                self._plan.head.method,
                answer_bytes=self._reader.head_bytes,
                is_reused=self._is_reused,
                died=died or self._delivery.has_lost_link(call),
                is_body_kept=not self._kept.is_lost,
                retry=self._plan.retry,
                sends=self._sends,
                is_late=monotonic() >= call.wait_until_s,
                unsent=self._unsent if is_unsent else 0,
                deaths=call.deaths if call.may_poison else 0,
                is_broken=call.is_broken,
            )
        )

    def _framing_for_client(self, head: ResponseHead) -> Framing:
        """Return the framing of the answer's body for the client: a filter may change that.

        A filter needs the content of chunks, so what it only reads is written in chunks anew, too.
        """
        found = self._plan.filter
        mode = FilterMode.OFF if found is None else found.begin(head)
        if mode is FilterMode.OFF:
            return head.framing
        self._filter = found
        if mode is FilterMode.READ and head.framing.kind is not BodyKind.CHUNKED:
            return head.framing
        self._is_rewriting = True
        return CHUNKED

    def _filtered(self, content: bytes) -> bytes:
        """Return bytes of the answer as the client gets them. Raises FnError."""
        if self._filter is None:
            return content
        return self._encoded(self._filter.feed(content))

    def _last_bytes(self) -> bytes:
        """Return what the client gets after the whole answer."""
        if self._filter is None or not self._is_rewriting:
            return b""
        rest = self._encoded(self._filter.end())
        return rest + LAST_CHUNK if self._is_encoding else rest

    def _encoded(self, content: bytes) -> bytes:
        return encode_chunk(content) if self._is_encoding else content

    def _close(self, call: ExchangeCall | None) -> tuple[int, int]:
        """Enter OVER; return the bytes of both bodies. `call`: that of this exchange."""
        self.state = State.OVER
        if call is not None and not call.is_free and self._answer is not None:
            self._journal.used(self._plan, self._answer)
        self._open.discard(self)
        self._kept.drop()
        if self._filter is not None:
            self._filter.close()
        return self._request_bytes, self._bytes_out

    def _leave_upstream(self) -> None:
        """Detach from the upstream connection, which the delivery closes or keeps."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.handler = None
            # Bytes that arrive before the delivery decides belong to no exchange.
            upstream.pause_reading()
