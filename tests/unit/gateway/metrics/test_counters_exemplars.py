"""Tests of what names a request in a histogram."""

from __future__ import annotations

import pytest

from gateway.metrics.counters import CHARACTERS_MAX, Exemplar, exemplar_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED, DROPPED = f"00-{TRACE}-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7-00"


def test_a_request_is_named_by_its_id_and_its_trace() -> None:
    """A trace that nobody keeps leads nowhere."""
    assert exemplar_of("a1", SAMPLED) == ("request_id", "a1", "trace_id", TRACE)
    assert exemplar_of("a1", DROPPED) == ("request_id", "a1")
    assert exemplar_of("", SAMPLED) == ("trace_id", TRACE)
    assert exemplar_of("", DROPPED) is None
    assert exemplar_of("", "") is None


@pytest.mark.parametrize("traceparent", ["x", "00-zz-00-01", SAMPLED[:-1] + '"', SAMPLED + "-x"])
def test_a_trace_that_is_none_is_left_out(traceparent: str) -> None:
    """It comes from the client, as it likes."""
    assert exemplar_of("a1", traceparent) == ("request_id", "a1")


def test_an_exemplar_is_no_longer_than_a_scraper_takes() -> None:
    """OpenMetrics allows 128 characters, names included."""
    longest = CHARACTERS_MAX - len("request_id")
    assert exemplar_of("a" * longest, "") == ("request_id", "a" * longest)
    assert exemplar_of("a" * (longest + 1), "") is None
    assert exemplar_of("a" * longest, SAMPLED) == ("trace_id", TRACE)


def test_an_exemplar_stays_for_a_second() -> None:
    """Unless the clock was set back."""
    one = Exemplar(("request_id", "a"), 0.1, 100.0)

    assert [one.is_fresh(at_s) for at_s in (100.0, 100.9, 101.0, 99.0)] == [
        True,
        True,
        False,
        False,
    ]
