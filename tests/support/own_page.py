"""Metrics of one process as a page, for a gateway without a server around it."""

from __future__ import annotations

from gateway.http.app import MetricsPage
from gateway.metrics.counters import PageFormat
from gateway.metrics.requests import Metrics


def own_page(metrics: Metrics) -> MetricsPage:
    """Return the page of what this process has counted."""

    async def page(form: PageFormat) -> bytes:
        return form.encode(metrics)

    return page
