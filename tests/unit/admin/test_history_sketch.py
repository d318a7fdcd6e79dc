"""Quantiles in few buckets."""

from __future__ import annotations

from math import inf, nan

import pytest

from admin.history import ALPHA, BUCKETS_MAX, MAX_MS, MEMORY, MIN_MS, Sketch


def of(*all_ms: float) -> Sketch:
    """A sketch of these durations."""
    made = Sketch()
    for ms in all_ms:
        made.add(ms)
    return made


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 10.0), (0.1, 10.0), (0.5, 500.0), (0.9, 9000.0), (1.0, 9000.0)]
)
def test_quantiles_are_near_the_true_ones(share: float, expected: float) -> None:
    """Each is off by five percent of its value at most, the small ones too."""
    assert of(9000.0, 10.0, 500.0).quantile_ms(share) == pytest.approx(expected, rel=ALPHA)


def test_without_durations_there_is_no_quantile() -> None:
    """It is 0, and nothing was counted."""
    assert (Sketch().quantile_ms(0.5), Sketch().samples) == (0.0, 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, nan])
def test_a_share_is_between_0_and_1(share: float) -> None:
    """Anything else is a mistake of the caller's."""
    with pytest.raises(ValueError, match="expected a share between 0 and 1"):
        of(1.0).quantile_ms(share)


def test_a_duration_is_a_number() -> None:
    """What is none is refused, and nothing is counted."""
    sketch = of(5.0)

    with pytest.raises(ValueError, match="got nan"):
        sketch.add(nan)

    assert sketch.samples == 1


@pytest.mark.parametrize(
    ("ms", "expected"), [(0.0, MIN_MS), (-3.0, MIN_MS), (1e12, MAX_MS), (inf, MAX_MS)]
)
def test_extremes_are_cut(ms: float, expected: float) -> None:
    """Whatever comes, the buckets stay few."""
    assert of(ms).quantile_ms(0.5) == pytest.approx(expected, rel=ALPHA)


def test_the_newest_durations_count_most() -> None:
    """A machine that became faster is believed after as many starts as are remembered."""
    sketch = of(*[9000.0] * 1000)
    for _ in range(MEMORY):
        sketch.add(10.0)

    assert sketch.quantile_ms(0.5) == pytest.approx(10.0, rel=ALPHA)
    assert sketch.samples == 1000 + MEMORY


def test_what_is_long_past_is_forgotten() -> None:
    """A bucket that has lost nearly all its weight takes no room."""
    sketch = of(9000.0, *[10.0] * (5 * MEMORY))

    assert sketch.buckets == 1
    assert sketch.quantile_ms(1.0) == pytest.approx(10.0, rel=ALPHA)


def test_buckets_are_bounded() -> None:
    """However far the durations lie apart."""
    assert of(*(MIN_MS * 1.05**n for n in range(1000))).buckets <= BUCKETS_MAX


def test_two_sketches_make_one() -> None:
    """As if all durations had gone to one; neither is changed by it."""
    left, right = of(10.0, 10.0), of(500.0, 10.0)

    both = left.merged(right)

    assert both.samples == 4
    assert both.quantile_ms(0.5) == pytest.approx(10.0, rel=ALPHA)
    assert both.quantile_ms(1.0) == pytest.approx(500.0, rel=ALPHA)
    assert left.quantile_ms(1.0) == pytest.approx(10.0, rel=ALPHA)
    assert right.samples == 2
