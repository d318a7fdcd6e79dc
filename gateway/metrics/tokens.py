"""Metric families of /v1: tokens, time to the first token, tokens per second."""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.metrics.counters import (
    Counter,
    CounterFamily,
    CounterStore,
    Histogram,
    HistogramFamily,
    Labels,
)
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
    """The families; `labels` are a function's namespace and name, as `Metrics` bounds them."""

    def __init__(self, labelnames: tuple[str, ...], store: CounterStore) -> None:
        text = "Tokens of requests to /v1, as functions' servers said."
        self._in = CounterFamily("fngate_input_tokens", text, labelnames, store)
        text = "Tokens of answers of /v1, as functions' servers said."
        self._out = CounterFamily("fngate_output_tokens", text, labelnames, store)
        text = "Calls of /v1 without a known number of tokens: broken off, or the server said none."
        self._unknown = CounterFamily("fngate_usage_unknown", text, labelnames, store)
        text = "Time from the head of a request to /v1 to the first event of its streamed answer."
        self._first_token = HistogramFamily(
            "fngate_first_token_seconds", text, labelnames, SECONDS, store
        )
        text = "Tokens per second of streamed answers of /v1, from their first event to their end."
        self._rate = HistogramFamily(
            "fngate_output_tokens_per_second", text, labelnames, RATES, store
        )
        self._known: dict[Labels, TokenNumbers] = {}
        self.collectors = (self._in, self._out, self._unknown, self._first_token, self._rate)

    def of(self, labels: Labels) -> TokenNumbers:
        """Return the numbers of a function. They are valid until the loop's next turn."""
        known = self._known.get(labels)
        if known is None:
            known = self._known[labels] = TokenNumbers(
                self._in.of(*labels),
                self._out.of(*labels),
                self._unknown.of(*labels),
                self._first_token.of(*labels),
                self._rate.of(*labels),
            )
        return known

    def remove(self, labels: Labels) -> None:
        """Remove the numbers of a function that was removed."""
        if self._known.pop(labels, None) is not None:
            for family in self.collectors:
                family.remove(*labels)
