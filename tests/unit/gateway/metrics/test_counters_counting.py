"""Tests of counters and distributions."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from gateway.metrics.counters import (
    CounterFamily,
    HistogramFamily,
    LocalStore,
    newest_exemplars,
    unit_of,
)

LABELS = ("function",)


def page(*collectors: CounterFamily | HistogramFamily) -> list[str]:
    """The lines that prometheus_client makes of them, comments apart."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_counters_are_shown_by_their_labels() -> None:
    """The same labels are the same counter; a removed one begins anew."""
    counts = CounterFamily("n", "text", LABELS, LocalStore())
    counts.of("f").inc(1.0)
    counts.of("f").inc(2.0)
    counts.of("g").inc(1.0)
    assert page(counts) == ['n_total{function="f"} 3.0', 'n_total{function="g"} 1.0']

    counts.remove("f")
    counts.remove("never counted")
    assert page(counts) == ['n_total{function="g"} 1.0']
    assert counts.of("f").get() == 0.0


def test_a_distribution_counts_up_to_its_bounds() -> None:
    """A value on a bound belongs to it, one beyond all to +Inf; buckets are shown summed up."""
    made = HistogramFamily("s", "text", LABELS, (1, 2.5), LocalStore())
    child = made.of("f")
    for value in (0.0, 1.0, 1.5, 2.5, 99.0):
        child.observe(value)

    assert made.of("f") is child
    assert page(made) == [
        's_bucket{function="f",le="1.0"} 2.0',
        's_bucket{function="f",le="2.5"} 4.0',
        's_bucket{function="f",le="+Inf"} 5.0',
        's_count{function="f"} 5.0',
        's_sum{function="f"} 104.0',
    ]
    made.remove("f")
    assert page(made) == []


def test_a_bucket_remembers_a_request() -> None:
    """One a second, the others are only counted; it is shown with its bucket, in OpenMetrics."""
    made = HistogramFamily("s_seconds", "text", LABELS, (1,), LocalStore())
    child = made.of("f")
    child.observe(0.5)
    assert child.exemplars == {}
    for at_s, name in ((100.0, "a"), (100.5, "b"), (101.0, "c")):
        child.observe(0.5, ("request_id", name), at_s)
    child.observe(7.0, ("request_id", "d"), 101.0)
    registry = CollectorRegistry()
    registry.register(made)
    text = openmetrics.generate_latest(registry).decode()

    assert "# UNIT s_seconds seconds" in text
    assert 'le="1.0"} 4.0 # {request_id="c"} 0.5 101.0' in text
    assert 'le="+Inf"} 5.0 # {request_id="d"} 7.0 101.0' in text
    assert [(one.name, one.labels) for one in newest_exemplars([made], 9)] == [
        ("s_seconds_bucket", ("function", "f", "le", "1.0")),
        ("s_seconds_bucket", ("function", "f", "le", "+Inf")),
    ]
    made.remove("f")
    assert newest_exemplars([made], 9) == []


def test_the_newest_exemplars_are_told() -> None:
    """So many at most, of all histograms together."""
    one, other = (HistogramFamily(name, "text", LABELS, (1,), LocalStore()) for name in "ab")
    for made, at_s in ((one, 1.0), (other, 3.0), (one, 2.0)):
        made.of(str(at_s)).observe(0.5, ("request_id", "x"), at_s)

    assert [mark.exemplar.at_s for mark in newest_exemplars([one, other], 2)] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("name", "unit"), [("a_seconds", "seconds"), ("a_bytes", "bytes"), ("a_rows", ""), ("a", "")]
)
def test_a_unit_is_in_the_name(name: str, unit: str) -> None:
    """As Prometheus has it: the last word."""
    assert unit_of(name) == unit
