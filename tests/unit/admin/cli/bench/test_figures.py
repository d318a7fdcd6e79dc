"""Quantiles, rates and the notes that limit them."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.cli.bench.figures import calls_per_s, figures, latency, notes, quantile
from admin.cli.bench.load import LoadResult

RESULT = LoadResult(
    array("d", [n / 1e3 for n in range(1, 201)]), array("d"), 2.0, 190, 2.5, {"503": 3}
)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1])
)
def test_a_quantile_is_the_smallest_value_that_covers_its_share(
    values: list[float], share: float
) -> None:
    """Nearest rank: one of the values; no smaller one covers the share."""
    ordered = sorted(values)
    found = quantile(ordered, share)

    assert found in ordered
    assert sum(one <= found for one in ordered) >= share * len(ordered) - 1e-6
    assert sum(one < found for one in ordered) <= share * len(ordered)


def test_few_values_have_no_high_quantiles() -> None:
    """The 99th percentile of ten values would be their maximum under another name."""
    assert latency([]).p50_ms is None
    ten = latency([float(n) for n in range(10, 0, -1)])
    assert (ten.p50_ms, ten.p90_ms, ten.p99_ms, ten.max_ms) == (5.0, 9.0, None, 10.0)
    assert latency([1.0] * 99).p99_ms is None
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)


def test_the_rate_is_that_of_the_window() -> None:
    """Answers within the window count; calls longer than the window count over their own time."""
    assert calls_per_s(RESULT, 8) == 95.0
    slow = replace(RESULT, taken_s=array("d", [4.0, 5.0]), in_window=0, elapsed_s=5.0)
    assert calls_per_s(slow, 2) == 0.4
    nothing = replace(slow, taken_s=array("d"), elapsed_s=0.0)
    assert calls_per_s(nothing, 2) == 0.0


def test_figures_are_json() -> None:
    """Rows multiply the rate; unknown rows have none; errors stand apart."""
    found = figures(RESULT, 4, 8)
    data = json.loads(json.dumps(found.to_json()))

    assert data["latency_ms"] == {"p50": 100.0, "p90": 180.0, "p99": 198.0, "max": 200.0}
    assert (data["calls_per_s"], data["rows_per_s"], data["answers"]) == (95.0, 380.0, 200)
    assert (data["errors"], data["partial"]) == ({"503": 3}, None)
    assert figures(RESULT, 0, 8).rows_per_s is None


def test_notes_name_limits_of_the_figures() -> None:
    """A generator at its limit, or without a processor; calls that no figure has."""
    assert notes([]) == notes([figures(RESULT, 1, 8)]) == []
    spoilt = replace(RESULT, busy=0.95, starved=0.3, warmup_errors=2, cut=5, unsent=7)
    found = "\n".join(notes([figures(RESULT, 1, 8), figures(spoilt, 1, 8)]))
    for text in ("computed 95%", "waited 30%", "2 calls of the warm-up", "5 calls were", "7 calls"):
        assert text in found
