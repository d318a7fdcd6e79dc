"""Table [health] of a server function, and its conversion to settings."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from registry.manifest.checks import Section, refused
from registry.model.functions import Health
from registry.model.servers import ServerSettings

EVERY_LEAST_S: Final = 1.0
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
"""A metric's name in Prometheus' data model."""
_METRICS: Final = re.compile(r"/[!-~]*")
_DEFAULTS: Final = Health()


class HealthTable(Section):
    """Table [health]."""

    hang: Literal["replace", "report", "off"] = _DEFAULTS.hang
    """What fngate does with a server that is ready and does not answer any more, or answers its
    [golden sample](../guides/servers.md#golden-samples) wrong: `replace` it, `report` it in
    `fnctl ls` and `fnctl why`, or nothing; a wrong answer is shown all the same."""
    counter: Annotated[str, StringConstraints(max_length=200)] | None = None
    """Name of a metric of the server that rises as long as it works. It proves in a long silence
    that the server works, or does not. Empty for none. The default is that of vLLM if the command
    or the image is vLLM, else none."""
    metrics: Annotated[str, StringConstraints(max_length=512)] = _DEFAULTS.metrics
    """Path at which the server shows this metric, in Prometheus' text format."""
    step_s: float | None = Field(default=None, ge=1, le=86_400)
    """Longest time in seconds in which a server that computes may show no progress: no byte, no end
    of a request, no move of its counter. 900 by default, 120 for vLLM with prefills in parts."""
    sample_every_s: float = Field(default=0.0, ge=0, le=86_400)
    """Seconds between two asks of the [golden sample](../guides/servers.md#golden-samples) of an
    idle replica, at least 1; 0 for none. They keep no replica awake."""


def health_settings(table: HealthTable, server: ServerSettings) -> Health:
    """Convert the table to settings. Raises BadManifest."""
    every_s, key = table.sample_every_s, "health.sample_every_s"
    if 0 < every_s < EVERY_LEAST_S:
        raise refused(key, f"0, or at least {EVERY_LEAST_S:g}", every_s)
    if every_s and server.why_not_golden:
        advice = "0 without a golden sample ([openai], or [[sample]] with golden = true)"
        raise refused(key, advice, every_s)
    if table.counter and not _METRIC.fullmatch(table.counter):
        raise refused(
            "health.counter", "the name of a metric, such as requests_total", table.counter
        )
    if not _METRICS.fullmatch(table.metrics):
        raise refused("health.metrics", "a path such as /metrics", table.metrics)
    return Health(**table.model_dump())
