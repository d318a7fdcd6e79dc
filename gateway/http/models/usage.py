"""Usage of one call of /v1: what its answer says, counted once when the call ends."""

from __future__ import annotations

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


class UsageMeter:
    """The usage of one call. `key_id`: of the caller's key, "" without one. `began_s`: when its
    head arrived (monotonic). `answer`: None for a WebSocket, of which nothing is read.
    `says_usage`: answers of its endpoint tell tokens."""

    __slots__ = (
        "_answer",
        "_began_s",
        "_first_s",
        "_invoker",
        "_key_id",
        "_owner",
        "_says_usage",
    )

    def __init__(
        self,
        invoker: Invoker,
        function: Function,
        key_id: str,
        answer: ModelAnswer | None,
        began_s: float,
        *,
        says_usage: bool,
    ) -> None:
        self._invoker = invoker
        self._owner = (function.namespace, function.name)
        self._key_id = key_id
        self._answer = answer
        self._began_s = began_s
        self._says_usage = says_usage
        self._first_s = 0.0
        if answer is not None:
            answer.on_first = self._on_first

    def _on_first(self) -> None:
        """Note the first bytes of the answer's body."""
        if self._answer is not None and self._answer.is_stream and self._says_usage:
            self._first_s = now = monotonic()
            self._invoker.metrics.tokens_of(*self._owner).first_token.observe(now - self._began_s)

    def end(self, status: int, sent_s: float, *, is_answered: bool, is_complete: bool) -> None:
        """Count the call, which was sent to a server at `sent_s` (monotonic).

        `status`: of the server's answer, if `is_answered`. `is_complete`: the whole answer has
        arrived. An answer that broke off after its end marker has all its tokens.
        """
        answer, invoker, now = self._answer, self._invoker, monotonic()
        usage = None
        if answer is not None and is_answered and (is_complete or answer.has_said_end):
            usage = answer.usage
        is_refused = is_answered and status not in SUCCESSES
        is_unknown = self._says_usage and usage is None and not is_refused
        tokens_in, tokens_out = usage or (0, 0)
        bucket_s = bucket_of(invoker.wall())
        busy_ms = max(0, round((now - sent_s) * 1e3))
        numbers = (tokens_in, tokens_out, 1, int(is_unknown), busy_ms)
        invoker.history.used(UsageRow(self._key_id, *self._owner, bucket_s, *numbers))
        metrics = invoker.metrics.tokens_of(*self._owner)
        metrics.tokens_in.inc(tokens_in)
        metrics.tokens_out.inc(tokens_out)
        metrics.unknown.inc(is_unknown)
        took_s = now - self._first_s
        if self._first_s and tokens_out and took_s >= STREAM_S:
            metrics.rate.observe(tokens_out / took_s)
