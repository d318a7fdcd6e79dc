"""How many requests functions answer, and how fast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.rates import NO_RESPONSES, Rates, quantile_ms

F = ("default", "f")
BOUNDS = (0.01, 0.1, 1.0)


def test_who_answers_nothing_is_at_rest() -> None:
    """No rate, no quantile."""
    assert Rates(BOUNDS).response_rate(F, 5.0) == NO_RESPONSES


def test_a_rate_is_over_ten_seconds() -> None:
    """What came before counts in the quantiles only."""
    rates = Rates(BOUNDS)
    rates.add(F, (50, 0, 0, 0), 100.0)
    rates.add(F, (0, 20, 0, 0), 115.0)

    response_rate = rates.response_rate(F, 116.0)

    assert response_rate.rate == 2.0
    assert rates.rate(116.0) == 2.0
    assert response_rate.p50_ms == 7.0
    assert response_rate.p95_ms == pytest.approx(10 + 90 * 16.5 / 20)


def test_a_minute_later_it_is_at_rest_again() -> None:
    """And takes no memory."""
    rates = Rates(BOUNDS)
    rates.add(F, (1, 0, 0, 0), 100.0)

    assert list(rates.active(159.0)) == [F]
    assert rates.response_rate(F, 160.0) == NO_RESPONSES
    assert list(rates.active(160.0)) == []


def test_what_nobody_looks_at_takes_no_memory() -> None:
    """Servers run for months, with functions that come and go, and nobody may ever watch."""
    rates = Rates(BOUNDS)
    for second in range(200):
        rates.add(F, (1, 0, 0, 0), float(second))
        rates.add(("default", f"f{second}"), (1, 0, 0, 0), float(second))

    assert len(rates._windows[F].seconds) <= 60
    assert len(rates._windows) <= 62
    assert len(rates._counts) <= 20


def test_another_count_of_buckets_is_a_defect() -> None:
    """It says what was expected."""
    with pytest.raises(ValueError, match="expected 4 counts, got 3"):
        Rates(BOUNDS).add(F, (1, 2, 3), 0.0)


def test_beyond_the_last_bound_nobody_knows_more() -> None:
    """The last bound is said."""
    assert quantile_ms(BOUNDS, (0, 0, 0, 4), 0.5) == 1000.0
    assert quantile_ms(BOUNDS, (0, 0, 0, 0), 0.5) is None


@given(
    st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=80),
    st.integers(0, 200),
)
def test_the_window_is_what_came_in_it(seconds: list[tuple[int, ...]], later: int) -> None:
    """Sums that are kept up to date are the sums made anew."""
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
    """No more lie wholly below it than that part, and no more wholly above it than the rest."""
    value = quantile_ms(BOUNDS, (*counts, 0), part)
    if value is None:
        assert sum(counts) == 0
        return
    lows = (0.0, *BOUNDS)
    below = sum(n for n, high in zip(counts, BOUNDS, strict=True) if high * 1e3 < value)
    above = sum(n for n, low in zip(counts, lows, strict=False) if low * 1e3 > value)
    assert below <= sum(counts) * part + 1e-6
    assert above <= sum(counts) * (1 - part) + 1e-6
