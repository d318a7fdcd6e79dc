"""Tests of counters, histograms, exemplars and the formats of the metrics page."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from gateway.metrics.counters import (
    CHARACTERS_MAX,
    OPENMETRICS,
    TEXT,
    CounterFamily,
    Exemplar,
    HistogramFamily,
    LocalStore,
    PageFormat,
    exemplar_of,
    negotiate_format,
    newest_exemplars,
    unit_of,
)

LABELS = ("function",)


def page(*collectors: CounterFamily | HistogramFamily) -> list[str]:
    """Return the sample lines that prometheus_client renders."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_counters_are_shown_by_their_labels() -> None:
    """Equal labels share one counter; a removed counter restarts at 0."""
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
    """Bounds are inclusive, larger values count to +Inf, and buckets are cumulative."""
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
    """A bucket keeps one exemplar a second; OpenMetrics shows it with the bucket."""
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


def test_the_newest_exemplars_come_first() -> None:
    """At most `n` exemplars are returned, the newest of all histograms."""
    one, other = (HistogramFamily(name, "text", LABELS, (1,), LocalStore()) for name in "ab")
    for made, at_s in ((one, 1.0), (other, 3.0), (one, 2.0)):
        made.of(str(at_s)).observe(0.5, ("request_id", "x"), at_s)

    assert [mark.exemplar.at_s for mark in newest_exemplars([one, other], 2)] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("name", "unit"), [("a_seconds", "seconds"), ("a_bytes", "bytes"), ("a_rows", ""), ("a", "")]
)
def test_a_unit_is_in_the_name(name: str, unit: str) -> None:
    """The unit is the last word of the name if Prometheus knows it as one."""
    assert unit_of(name) == unit


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED, DROPPED = f"00-{TRACE}-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7-00"


def test_a_request_is_named_by_its_id_and_its_trace() -> None:
    """An exemplar has the request id, and the trace id if the trace is sampled."""
    assert exemplar_of("a1", SAMPLED) == ("request_id", "a1", "trace_id", TRACE)
    assert exemplar_of("a1", DROPPED) == ("request_id", "a1")
    assert exemplar_of("", SAMPLED) == ("trace_id", TRACE)
    assert exemplar_of("", DROPPED) is None
    assert exemplar_of("", "") is None


@pytest.mark.parametrize("traceparent", ["x", "00-zz-00-01", SAMPLED[:-1] + '"', SAMPLED + "-x"])
def test_an_invalid_trace_is_left_out_of_an_exemplar(traceparent: str) -> None:
    """The client sends the header, so it may be invalid."""
    assert exemplar_of("a1", traceparent) == ("request_id", "a1")


def test_an_exemplar_is_no_longer_than_a_scraper_takes() -> None:
    """OpenMetrics allows 128 characters, label names included."""
    longest = CHARACTERS_MAX - len("request_id")
    assert exemplar_of("a" * longest, "") == ("request_id", "a" * longest)
    assert exemplar_of("a" * (longest + 1), "") is None
    assert exemplar_of("a" * longest, SAMPLED) == ("trace_id", TRACE)


def test_an_exemplar_stays_for_a_second() -> None:
    """An exemplar is fresh for a second, unless the clock was set back."""
    one = Exemplar(("request_id", "a"), 0.1, 100.0)

    assert [one.is_fresh(at_s) for at_s in (100.0, 100.9, 101.0, 99.0)] == [
        True,
        True,
        False,
        False,
    ]


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ('Application/OpenMetrics-Text; version="1.0.0"; q=1', OPENMETRICS),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("text/html, application/json", TEXT),
        ("text/plain, application/openmetrics-text;q=0.1", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;version=99", TEXT),
        ("application/openmetrics-text;version=abc", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
        ("application/openmetrics-text;q=2", TEXT),
        ("application/openmetrics-text;q=;;=", TEXT),
        ("," * 100_000 + "application/openmetrics-text", TEXT),
    ],
)
def test_a_scraper_gets_the_format_it_prefers(accept: str, form: PageFormat) -> None:
    """The page is text without a valid preference or for an unknown version."""
    assert negotiate_format(accept) is form
