"""The server itself on `/metrics`: which one it is, its processes, what it writes down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from registry.store.history import HistoryStatistics


class Gateways(Protocol):
    """The processes that calls come to."""

    @property
    def running(self) -> int:
        """How many accept calls."""

    @property
    def deaths(self) -> int:
        """How many have ended unasked since the start."""


class OneGateway:
    """The server's own process is the only one: it runs as long as anybody can ask."""

    running = 1
    deaths = 0


class ServerFamilies:
    """As it was at the last look. `statistics` says how the history is written."""

    def __init__(
        self,
        driver: str,
        statistics: Callable[[], HistoryStatistics],
        gateways: Gateways,
    ) -> None:
        self._about = {"version": version("fngate"), "driver": driver}
        self._statistics = statistics
        self._gateways = gateways
        self._process = ProcessCollector(registry=CollectorRegistry())
        self._seen = (HistoryStatistics(0, 0, 0, 0), 0, 0)

    def look(self) -> None:
        """Read it; in the loop's thread."""
        self._seen = self._statistics(), self._gateways.running, self._gateways.deaths

    def collect(self) -> Iterable[Metric]:
        """The families; memory and time of the process are those of this moment."""
        written, running, deaths = self._seen
        yield InfoMetricFamily("fngate_build", "Which server this is.", self._about)
        text = "Processes that accept calls."
        yield GaugeMetricFamily("fngate_gateway_processes", text, running)
        text = "Gateway processes that ended unasked; each is replaced."
        yield CounterMetricFamily("fngate_gateway_process_deaths", text, deaths)
        text = "Records of the history that wait to be written."
        yield GaugeMetricFamily("fngate_history_waiting_records", text, written.buffered)
        text = (
            "Records of the history that were dropped: too many waited, or they cannot be stored."
        )
        yield CounterMetricFamily("fngate_history_dropped_records", text, written.dropped)
        text = "Times that the history, or a part of it, could not be written."
        yield CounterMetricFamily("fngate_history_failed_flushes", text, written.failed_flushes)
        yield from self._process.collect()
