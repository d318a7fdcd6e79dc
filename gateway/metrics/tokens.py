"""Metric families of /v1: tokens, time to the first token, tokens per second."""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.metrics.counters import Counter, Families, Histogram, Labels
from gateway.metrics.exchanges import SECONDS

RATES: Final = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500, 1000, 2000)
"""Bounds of the tokens per second: those of reading are below 20."""


class TokenNumbers(NamedTuple):
    """The numbers of one function."""

    tokens_in: Counter
    tokens_out: Counter
    unknown: Counter
    first_token: Histogram
    rate: Histogram


class TokenFamilies:
    """The families of tokens."""

    def __init__(self, families: Families) -> None:
        self._in = families.counter(
            "fngate_input_tokens", "Tokens of requests to /v1, as functions' servers said."
        )
        self._out = families.counter(
            "fngate_output_tokens", "Tokens of answers of /v1, as functions' servers said."
        )
        self._unknown = families.counter(
            "fngate_usage_unknown",
            "Calls of /v1 without a known number of tokens: broken off, or the server said none.",
        )
        self._first_token = families.histogram(
            "fngate_first_token_seconds",
            "Time from the head of a request to /v1 to the first event of its streamed answer.",
            SECONDS,
        )
        self._rate = families.histogram(
            "fngate_output_tokens_per_second",
            "Tokens per second of streamed answers of /v1, from their first event to their end.",
            RATES,
        )

    def bind(self, labels: Labels) -> TokenNumbers:
        """Return the numbers of a function. They are valid until the loop's next turn."""
        return TokenNumbers(
            self._in.of(*labels),
            self._out.of(*labels),
            self._unknown.of(*labels),
            self._first_token.of(*labels),
            self._rate.of(*labels),
        )
