"""Usage of one call of /v1: what its answer says, counted once when the call ends."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.proxy.response_head import SWITCHING
from registry.usage import UsageRow, bucket_of

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from gateway.v1.rewriting import ModelAnswer
    from registry.model.functions import Function

SUCCESSES: Final = frozenset({SWITCHING, *range(200, 300)})
"""Statuses of answers that take tokens. A server's error takes none."""
STREAM_S: Final = 0.001
"""Min seconds of a stream whose tokens per second are counted: what arrives at once has no rate."""


@dataclass(slots=True, eq=False)
class UsageMeter:
    """The usage of one call."""

    invoker: Invoker
    function: Function
    key_id: str
    """Id of the caller's key, "" without one."""
    answer: ModelAnswer | None
    """None for a WebSocket, of which nothing is read."""
    began_s: float
    """When the request's head arrived, in monotonic seconds."""
    says_usage: bool
    """Whether answers of the endpoint tell tokens."""
    first_s: float = 0.0
    """When the first bytes of a stream's body arrived, 0.0 for not yet."""

    def __post_init__(self) -> None:
        """Have the answer tell its first bytes."""
        if self.answer is not None:
            self.answer.on_first = self._on_first

    def _on_first(self) -> None:
        """Note the first bytes of the answer's body."""
        if self.answer is not None and self.answer.is_stream and self.says_usage:
            self.first_s = now = monotonic()
            function = self.function
            metrics = self.invoker.metrics.tokens_of(function.namespace, function.name)
            metrics.first_token.observe(now - self.began_s)

    def end(self, status: int, sent_s: float, *, is_answered: bool, is_complete: bool) -> None:
        """Count the call, which was sent to a server at `sent_s` (monotonic).

        `status`: of the server's answer, if `is_answered`. `is_complete`: the whole answer has
        arrived. An answer that broke off after its end marker has all its tokens.
        """
        answer, invoker, now = self.answer, self.invoker, monotonic()
        usage = None
        if answer is not None and is_answered and (is_complete or answer.has_said_end):
            usage = answer.usage
        is_refused = is_answered and status not in SUCCESSES
        is_unknown = self.says_usage and usage is None and not is_refused
        tokens_in, tokens_out = usage or (0, 0)
        bucket_s = bucket_of(invoker.wall())
        busy_ms = max(0, round((now - sent_s) * 1e3))
        numbers = (tokens_in, tokens_out, 1, int(is_unknown), busy_ms)
        owner = self.function.namespace, self.function.name
        invoker.history.used(UsageRow(self.key_id, *owner, bucket_s, *numbers))
        metrics = invoker.metrics.tokens_of(*owner)
        metrics.tokens_in.inc(tokens_in)
        metrics.tokens_out.inc(tokens_out)
        metrics.unknown.inc(is_unknown)
        took_s = now - self.first_s
        if self.first_s and tokens_out and took_s >= STREAM_S:
            metrics.rate.observe(tokens_out / took_s)
