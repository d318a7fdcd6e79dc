"""The form of `/metrics` that a scraper asks for: OpenMetrics 1.0 or Prometheus text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

RANGES_MAX: Final = 32
"""Media ranges of one header that are looked at."""
_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_VERSIONS: Final = ("", "0.0.1", "1.0.0")


class Form(NamedTuple):
    """A form of the page: how it is called, and what writes it."""

    content_type: str
    encode: Callable[[Collector], bytes]


TEXT: Final = Form("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPENMETRICS: Final = Form(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics.generate_latest
)


def form_of(accept: str) -> Form:
    """What the header `Accept` prefers (RFC 9110, section 12.5.1). Text where it has no
    preference, or would have neither: every scraper reads that."""
    best = {True: 0.0, False: 0.0}
    for kind, version, quality in _ranges(accept):
        if kind == _OPENMETRICS_TYPE and version in _VERSIONS:
            best[True] = max(best[True], quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            best[False] = max(best[False], quality)
    return OPENMETRICS if best[True] and best[True] >= best[False] else TEXT


def _ranges(accept: str) -> Iterator[tuple[str, str, float]]:
    """Media type, version and quality of each range; one that cannot be read has quality 0."""
    for text in accept.split(",")[:RANGES_MAX]:
        kind, *rest = (part.strip().lower() for part in text.split(";"))
        given = {}
        for part in rest:
            name, _, value = part.partition("=")
            given[name.strip()] = value.strip().strip('"')
        yield kind, given.get("version", ""), _quality(given.get("q", "1"))


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
