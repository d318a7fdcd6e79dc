"""Interfaces of an exchange: its client side, its delivery, its memory and its journal."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.proxy.fields import Field
    from gateway.proxy.plan import ExchangePlan
    from gateway.proxy.response_head import ResponseHead
    from gateway.replies import Reply
    from gateway.server_links import ExchangeCall
    from gateway.upstream import UpstreamConnection
    from registry.errors import FnError


class ClientSide(Protocol):
    """The client's connection during one exchange. Event loop thread only.

    It passes the request's body to the exchange as it goes upstream (`Exchange.request_data`,
    `request_end`), and reports when its write buffer is full or free again (`client_paused`,
    `client_resumed`).
    """

    def write(self, data: bytes) -> None:
        """Send bytes of the answer."""

    def pause_body(self) -> None:
        """Stop reading the request's body; idempotent."""

    def resume_body(self) -> None:
        """Continue reading the request's body; idempotent."""

    def answer(self, reply: Reply) -> None:
        """Send a complete reply of the gateway; `finish` follows."""

    def begin_tunnel(self) -> None:
        """Pass on every further byte, and the end of the client's bytes, until the exchange ends.

        The bytes go to `Exchange.request_data`, the end to `Exchange.client_eof`.
        """

    def write_eof(self) -> None:
        """Close the sending direction of a tunnel."""

    def finish(self, *, keep: bool) -> None:
        """End the exchange: the answer is complete.

        `keep`: the connection may serve another request. Otherwise the rest of the request's body
        is discarded for a bounded time, and the connection closes.
        """

    def cut(self, *, resets: bool) -> None:
        """End the exchange so that the client sees an incomplete answer.

        `resets`: the end of the connection alone would look like a complete answer, so the
        connection is reset.
        """

    def tick(self) -> bool:
        """Return whether the client is still there, as far as that can be known without reading."""


class ClientExchange(Protocol):
    """An exchange as its client's connection sees it. Event loop thread only."""

    is_request_whole: bool
    """Whether the client has sent the whole request."""

    @property
    def is_over(self) -> bool:
        """Whether the exchange has ended."""

    def start(self) -> None:
        """Begin, once the client can take an answer."""

    def request_data(self, data: bytes) -> None:
        """Take bytes of the request's body in its framing, or of a tunnel."""

    def request_whole(self, data: bytes) -> None:
        """Take the whole body of the request, before `start`."""

    def request_end(self) -> None:
        """Note that the request's body is complete."""

    def fail(self, error: FnError) -> None:
        """End the exchange with an error."""

    def client_eof(self) -> None:
        """Note that the client has ended its direction of a tunnel."""

    def client_lost(self) -> None:
        """Note that the client has left; without effect if the exchange has ended."""

    def client_paused(self) -> None:
        """Stop the answer: the client does not read it."""

    def client_resumed(self) -> None:
        """Continue the answer."""


class FilterMode(Enum):
    """What a filter does with the body of an answer."""

    OFF = "off"
    """Nothing: it gets no further call."""
    READ = "read"
    """It reads the body, which passes as it is."""
    CHANGE = "change"
    """It replaces the body, whose length the client learns only at its end."""


class AnswerFilter(Protocol):
    """Reads or changes one answer between the server and the client. Pure: bytes in, bytes out."""

    has_head: bool
    """Whether the client has got a head already. The answer's is not sent then, and the mode of
    every answer is CHANGE."""

    def begin(self, head: ResponseHead) -> FilterMode:
        """Note the head of the final answer."""

    def feed(self, content: bytes) -> bytes:
        """Take bytes of the body, without its chunked coding; return those for the client.

        In the mode READ these are the same. Raises FnError for a body that cannot be passed on.
        """

    def end(self) -> bytes:
        """Return the last bytes for the client: the answer is complete."""

    def failed(self, error: FnError) -> bytes:
        """Return the last bytes for the client of an answer that stays incomplete."""

    def close(self) -> None:
        """Give back the memory: the exchange has ended; idempotent."""


class ExchangeDelivery(Protocol):
    """The part of `gateway.delivery.Delivery` that an exchange uses."""

    def submit_exchange(self, call: ExchangeCall) -> None:
        """Accept a call; it gets a connection, at once or later. Raises FnError."""

    def end_exchange(self, call: ExchangeCall, *, kept: bool, outcome: str = "completed") -> None:
        """End the exchange of an opened call; `kept`: its connection may be used again."""

    def fail_exchange(self, call: ExchangeCall, error: FnError) -> None:
        """End an opened call with an error, which `call.done` gets, at once or later."""

    def has_lost_link(self, call: ExchangeCall) -> bool:
        """Return whether an opened call has lost the link to its replica."""

    def tell_tunnel(self, call: ExchangeCall, *, is_quiet: bool) -> None:
        """Note that an opened call is a WebSocket, which is quiet or in use."""

    def is_stopping(self, call: ExchangeCall) -> bool:
        """Return whether the replica of an opened call is to stop, or was when it ended."""

    def ask_server(self, call: ExchangeCall, answered: Callable[[bool], None]) -> None:
        """Ask whether the server of an opened call still listens: `answered(listens)`."""

    def retry_exchange(self, call: ExchangeCall, *, was_refused: bool = False) -> None:
        """Queue an opened call again: its connection was lost. `was_refused`: nothing was sent on
        it, and the next one follows after a pause."""

    def cancel(self, call: ExchangeCall) -> None:
        """End a call whose client has left."""


class Reservation(Protocol):
    """Reserved bytes of one arriving body; see `gateway.http.reservations`."""

    def grow(self, count: int) -> None:
        """Reserve `count` more bytes. Raises BodyEvicted."""

    def release(self) -> None:
        """Release all bytes; idempotent."""


class Journal(Protocol):
    """The record of one exchange: headers for its answer, problem documents, metrics, log."""

    sent_s: float
    """When the request was sent last (monotonic seconds), 0 before."""

    @property
    def request_id(self) -> str:
        """The id of the request."""

    def fields(self, call: ExchangeCall) -> tuple[Field, ...]:
        """Return the fields to add to the answer's head.

        Server-Timing and X-Request-Id, in this order, have the value
        `gateway.proxy.known_answers.VARYING`.
        """

    def answered(self, call: ExchangeCall, upstream: UpstreamConnection, status: int) -> bytes:
        """Note the answer's head, and return the value of Server-Timing."""

    def problem(self, error: BaseException, call: ExchangeCall | None, size: int) -> Reply:
        """Return the problem document for an exchange without an answer, and record its end.

        `size`: bytes of the request's body.
        """

    def ended(
        self, error: FnError | None, call: ExchangeCall | None, sizes: tuple[int, int]
    ) -> None:
        """Record the end of an exchange whose answer began, or whose client has left.

        `error`: why the answer is incomplete, None if it is complete. `sizes`: bytes of the
        request's and of the answer's body.
        """

    def closed(self, plan: ExchangePlan, *, is_quiet: bool) -> None:
        """Note that a WebSocket is closed because its replica stops. `is_quiet`: no data passed."""

    def used(self, plan: ExchangePlan, answer: ResponseHead) -> None:
        """Note that an exchange ends now which kept its function awake."""

    def left(self, call: ExchangeCall | None, sizes: tuple[int, int]) -> None:
        """Record an exchange whose client has left."""
