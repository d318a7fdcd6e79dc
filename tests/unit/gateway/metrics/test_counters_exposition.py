"""Tests of the form that a scraper asks for."""

from __future__ import annotations

import pytest

from gateway.metrics.counters import OPENMETRICS, TEXT, PageFormat, negotiate_format

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
def test_a_scraper_gets_what_it_prefers(accept: str, form: PageFormat) -> None:
    """Text where it has no preference, asks for another version, or says nothing that is valid."""
    assert negotiate_format(accept) is form
