"""Quantiles of a stream of durations in a few buckets, the newest counting most.

Buckets grow by a constant factor, so that every quantile is off by at most `ALPHA` of its value
whatever the durations are: the idea of DDSketch (Masson, Rim, Lee: "DDSketch: a fast and
fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019). Each new duration
takes a little weight from all before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log
from typing import Final

ALPHA: Final = 0.05
"""Relative error of a quantile."""
GAMMA: Final = (1 + ALPHA) / (1 - ALPHA)
MIN_MS: Final = 0.01
MAX_MS: Final = 3_600_000.0
"""What is shorter or longer counts as this."""
MEMORY: Final = 200
"""So many durations later one has lost all but 1/e of its weight."""
DUST: Final = 0.01
"""A bucket with less weight than this is dropped."""

_LOG_GAMMA: Final = log(GAMMA)
BUCKETS_MAX: Final = ceil(log(MAX_MS) / _LOG_GAMMA) - ceil(log(MIN_MS) / _LOG_GAMMA) + 1


@dataclass(slots=True)
class Sketch:
    """Weights by bucket: bucket i holds durations in (GAMMA**(i - 1), GAMMA**i] milliseconds.

    `samples` is how many durations were ever added.
    """

    samples: int = 0
    _weights: dict[int, float] = field(default_factory=dict)

    def add(self, ms: float) -> None:
        """Take one duration. Raises ValueError for what is no number."""
        if ms != ms:
            raise ValueError("expected a duration in milliseconds, got nan")
        bucket = ceil(log(min(MAX_MS, max(MIN_MS, ms))) / _LOG_GAMMA)
        keep = 1 - 1 / MEMORY
        kept = {i: w * keep for i, w in self._weights.items() if w * keep >= DUST}
        kept[bucket] = kept.get(bucket, 0.0) + 1.0
        self._weights = kept
        self.samples += 1

    def merged(self, other: Sketch) -> Sketch:
        """A sketch of both, each duration with the weight it has."""
        weights = dict(self._weights)
        for bucket, weight in other._weights.items():
            weights[bucket] = weights.get(bucket, 0.0) + weight
        return Sketch(self.samples + other.samples, weights)

    def quantile_ms(self, share: float) -> float:
        """The duration that `share` of the weight does not exceed; 0 where there is none.

        Raises ValueError unless 0 <= share <= 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"expected a share between 0 and 1, got {share}")
        if not self._weights:
            return 0.0
        wanted, seen = share * sum(self._weights.values()), 0.0
        for bucket in sorted(self._weights):
            seen += self._weights[bucket]
            if seen >= wanted:
                break
        return 2 * GAMMA**bucket / (GAMMA + 1)

    @property
    def buckets(self) -> int:
        """How many buckets have any weight."""
        return len(self._weights)
