"""Tests of response rates and their quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.rates import NO_RESPONSES, Rates, quantile_ms

F = ("default", "f")
BOUNDS = (0.01, 0.1, 1.0)


def test_a_function_without_responses_has_no_rate() -> None:
    """A function without responses has no rate and no quantiles."""
    assert Rates(BOUNDS).response_rate(F, 5.0) == NO_RESPONSES


def test_a_rate_is_over_ten_seconds() -> None:
    """The rate covers ten seconds; earlier responses count in the quantiles only."""
    rates = Rates(BOUNDS)
    rates.add(F, (50, 0, 0, 0), 100.0)
    rates.add(F, (0, 20, 0, 0), 115.0)

    response_rate = rates.response_rate(F, 116.0)

    assert response_rate.rate == 2.0
    assert rates.rate(116.0) == 2.0
    assert response_rate.p50_ms == 7.0
    assert response_rate.p95_ms == pytest.approx(10 + 90 * 16.5 / 20)


def test_a_minute_later_it_is_at_rest_again() -> None:
    """A minute after its last response a function has no rate and takes no memory."""
    rates = Rates(BOUNDS)
    rates.add(F, (1, 0, 0, 0), 100.0)

    assert list(rates.active(159.0)) == [F]
    assert rates.response_rate(F, 160.0) == NO_RESPONSES
    assert list(rates.active(160.0)) == []


def test_memory_is_bounded_without_readers() -> None:
    """Memory stays bounded although nothing reads the rates and functions come and go."""
    rates = Rates(BOUNDS)
    for second in range(200):
        rates.add(F, (1, 0, 0, 0), float(second))
        rates.add(("default", f"f{second}"), (1, 0, 0, 0), float(second))

    assert len(rates._windows[F].seconds) <= 60
    assert len(rates._windows) <= 62
    assert len(rates._counts) <= 20


def test_another_count_of_buckets_is_a_defect() -> None:
    """A wrong number of buckets is a ValueError that names the right one."""
    with pytest.raises(ValueError, match="expected 4 counts, got 3"):
        Rates(BOUNDS).add(F, (1, 2, 3), 0.0)


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    """A quantile beyond the last bound is that bound."""
    assert quantile_ms(BOUNDS, (0, 0, 0, 4), 0.5) == 1000.0
    assert quantile_ms(BOUNDS, (0, 0, 0, 0), 0.5) is None


@given(
    st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=80),
    st.integers(0, 200),
)
def test_the_window_is_what_came_in_it(seconds: list[tuple[int, ...]], later: int) -> None:
    """Running sums equal those computed from the seconds in the window."""
    rates = Rates(BOUNDS)
    for at, counts in enumerate(seconds):
        rates.add(F, counts, float(at))
    now = len(seconds) - 1 + later

    inside = [counts for at, counts in enumerate(seconds) if at > now - 60]
    sums = [sum(column) for column in zip(*inside, strict=True)] if inside else [0] * 4
    recent = sum(sum(counts) for at, counts in enumerate(seconds) if at > now - 10)

    response_rate = rates.response_rate(F, float(now))
    assert response_rate.p95_ms == quantile_ms(BOUNDS, sums, 0.95)
    assert response_rate.rate == round(recent / 10, 2)


@given(st.tuples(*[st.integers(0, 20)] * 3), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_its_bucket(counts: tuple[int, ...], part: float) -> None:
    """At most the given share of responses lies in buckets below the quantile, and at most the rest
    above."""
    value = quantile_ms(BOUNDS, (*counts, 0), part)
    if value is None:
        assert sum(counts) == 0
        return
    lows = (0.0, *BOUNDS)
    below = sum(n for n, high in zip(counts, BOUNDS, strict=True) if high * 1e3 < value)
    above = sum(n for n, low in zip(counts, lows, strict=False) if low * 1e3 > value)
    assert below <= sum(counts) * part + 1e-6
    assert above <= sum(counts) * (1 - part) + 1e-6
