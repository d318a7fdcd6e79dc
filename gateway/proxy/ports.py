"""Interfaces of an exchange: to its client's connection, and to the filter of its answer."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.proxy.response_head import ResponseHead
    from gateway.replies import Reply
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


def answer_last(client: ClientSide, reply: Reply, *, keeps: bool) -> None:
    """Answer a request and end it. `keeps`: the connection may carry another request."""
    keeps = keeps and not reply.closes
    client.answer(reply if keeps else reply.closing())
    client.finish(keep=keeps)


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
