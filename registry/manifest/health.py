"""Table [health] of a server function, and its conversion to settings."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from registry.manifest.checks import Section, refused
from registry.model.functions import Health
from registry.model.servers import ServerSettings

EVERY_LEAST_S: Final = 1.0


class HealthTable(Section):
    """Table [health]."""

    sample_every_s: float = Field(default=0.0, ge=0, le=86_400)
    """Seconds between two asks of the [golden sample](../guides/servers.md#golden-samples) of an
    idle replica, at least 1; 0 for none. They keep no replica awake."""


def health_settings(table: HealthTable, server: ServerSettings) -> Health:
    """Convert the table to settings. Raises BadManifest."""
    every_s, key = table.sample_every_s, "health.sample_every_s"
    if 0 < every_s < EVERY_LEAST_S:
        raise refused(key, f"0, or at least {EVERY_LEAST_S:g}", every_s)
    if every_s and not server.wants_golden:
        advice = "0 without a golden sample ([openai], or [[sample]] with golden = true)"
        raise refused(key, advice, every_s)
    return Health(sample_every_s=every_s)
