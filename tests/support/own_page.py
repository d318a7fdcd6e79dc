"""Metrics of one process as a page, for a gateway without a server around it."""

from __future__ import annotations

from gateway.http.app import MetricsPage
from gateway.metrics.counters import PageFormat
from gateway.metrics.requests import Metrics


class OwnPage(MetricsPage):
    """Page of what this process has counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def refresh(self) -> None:
        """Fetch nothing: there are no other processes."""

    def snapshot(self) -> None:
        """Implement `MetricsPage.snapshot`."""
        self._metrics.snapshot()

    def render(self, form: PageFormat) -> bytes:
        """Implement `MetricsPage.render`."""
        return self._metrics.render(form)
