"""Property tests of the sketch: quantiles are within the error bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.history import ALPHA, BUCKETS_MAX, MAX_MS, MEMORY, MIN_MS, Sketch

durations = st.lists(st.floats(MIN_MS, MAX_MS), min_size=1, max_size=120)
shares = st.floats(0.0, 1.0)
SLACK = 1e-9
"""Tolerance for rounding, as a share of the weight."""


def sketch_of(all_ms: list[float]) -> Sketch:
    made = Sketch()
    for ms in all_ms:
        made.add(ms)
    return made


def weighted(all_ms: list[float]) -> list[tuple[float, float]]:
    """Return the durations, shortest first, each with its weight after the last one was added."""
    keep = 1 - 1 / MEMORY
    return sorted((ms, keep**age) for age, ms in enumerate(reversed(all_ms)))


def exact(pairs: list[tuple[float, float]], share: float) -> float:
    """Return the shortest duration with `share` of the weight at or below it."""
    wanted, seen = share * sum(weight for _, weight in pairs), 0.0
    for ms, weight in pairs:
        seen += weight
        if seen >= wanted:
            return ms
    return pairs[-1][0]


def assert_near(told: float, pairs: list[tuple[float, float]], share: float) -> None:
    low = exact(pairs, max(0.0, share - SLACK))
    high = exact(pairs, min(1.0, share + SLACK))
    assert low * (1 - ALPHA - SLACK) <= told <= high * (1 + ALPHA + SLACK)


@given(durations, shares)
def test_every_quantile_is_within_its_error(all_ms: list[float], share: float) -> None:
    """Every quantile is within the error bound, for any durations in any order."""
    assert_near(sketch_of(all_ms).quantile_ms(share), weighted(all_ms), share)


@given(durations, durations, shares)
def test_merged_sketches_keep_the_error_bound(
    left: list[float], right: list[float], share: float
) -> None:
    """A merged sketch has the samples of both and the same error bound."""
    first, second = sketch_of(left), sketch_of(right)
    both = first.merged(second)

    assert both.samples == len(left) + len(right)
    assert_near(both.quantile_ms(share), sorted(weighted(left) + weighted(right)), share)


@given(st.lists(st.floats(), max_size=50))
def test_a_sketch_is_bounded(all_ms: list[float]) -> None:
    """The number of buckets is bounded for any input, and quantiles never decrease."""
    sketch = sketch_of([ms for ms in all_ms if ms == ms])
    told = [sketch.quantile_ms(share / 10) for share in range(11)]

    assert sketch.buckets <= BUCKETS_MAX
    assert told == sorted(told)
