"""What `/metrics` shows of requests, pools and cold starts (Prometheus text format)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.receipt import Receipt
from registry.exchange import Load

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENDS = (1, 2, 3, 4, 6, 12)
CHILDREN_MAX = 10_000
REPLICAS_MAX = 1000
"""Replicas whose cold starts are remembered as counted, the newest."""


class Metrics:
    """Labels are names of deployed functions and error codes only, so their number is bounded.

    `loads` gives what is held and in flight now, `states` the pools' states, `tasks` how much
    goes on in the background.
    """

    def __init__(
        self,
        loads: Callable[[], dict[str, Load]],
        states: Callable[[], dict[str, str]],
        tasks: Callable[[], int],
    ) -> None:
        self._registry = CollectorRegistry()
        labels = ("namespace", "function")
        self._requests = Counter(
            "fngate_requests",
            "Requests answered, by outcome: ok or the problem's code.",
            (*labels, "outcome"),
            registry=self._registry,
        )
        self._duration = Histogram(
            "fngate_request_seconds",
            "From the last byte of the request to its answer.",
            labels,
            buckets=SECONDS,
            registry=self._registry,
        )
        self._phases = Histogram(
            "fngate_cold_start_seconds",
            "Phases of cold starts that requests waited for.",
            (*labels, "phase"),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._bind_sending(labels)
        self._counted: dict[str, None] = {}
        self._registry.register(_Pools(loads, states))
        self._registry.register(_Tasks(tasks))
        # Binding a child costs more than using it: each is bound once.
        self._count = lru_cache(CHILDREN_MAX)(self._requests.labels)
        self._time = lru_cache(CHILDREN_MAX)(self._duration.labels)

    def _bind_sending(self, labels: tuple[str, ...]) -> None:
        """How long requests wait for a replica, and how often they are sent to one."""
        queue = Histogram(
            "fngate_queue_seconds",
            "Time a request waited for a replica.",
            labels,
            buckets=SECONDS,
            registry=self._registry,
        )
        sends = Histogram(
            "fngate_request_sends",
            "Times a request was sent to a replica before it was answered.",
            labels,
            buckets=SENDS,
            registry=self._registry,
        )
        self._retries = Counter(
            "fngate_retries",
            "Requests sent again: their replica died while it ran them, or never started them.",
            (*labels, "reason"),
            registry=self._registry,
        )
        self._wait = lru_cache(CHILDREN_MAX)(queue.labels)
        self._send = lru_cache(CHILDREN_MAX)(sends.labels)

    def answered(self, namespace: str, function: str, outcome: str, seconds: float) -> None:
        """One request was answered."""
        self._count(namespace, function, outcome).inc()
        self._time(namespace, function).observe(seconds)

    def sent(self, namespace: str, function: str, sends: int, deaths: int) -> None:
        """A request is over that was sent so often; so many replicas died while they ran it."""
        self._send(namespace, function).observe(sends)
        if sends > 1:
            # The last death of a request that was given up led to no other send.
            died = min(deaths, sends - 1)
            self._retries.labels(namespace, function, "died").inc(died)
            self._retries.labels(namespace, function, "not_started").inc(sends - 1 - died)

    def received(self, namespace: str, function: str, receipt: Receipt) -> None:
        """A replica's answer came."""
        self._wait(namespace, function).observe(receipt.queue_ms / 1e3)
        if receipt.is_cold and self._is_news(receipt.replica):
            for phase, ms in receipt.phases.items():
                self._phases.labels(namespace, function, phase).observe(ms / 1e3)

    def _is_news(self, replica: str) -> bool:
        """Whether this replica's cold start is to be counted: many requests may have waited."""
        if replica in self._counted:
            return False
        self._counted[replica] = None
        if len(self._counted) > REPLICAS_MAX:
            del self._counted[next(iter(self._counted))]
        return True

    def render(self) -> bytes:
        """The page; takes milliseconds, so it is to be called in a thread."""
        return generate_latest(self._registry)


class _Pools(Collector):
    """Gauges read at the moment of the scrape."""

    def __init__(
        self, loads: Callable[[], dict[str, Load]], states: Callable[[], dict[str, str]]
    ) -> None:
        self._loads = loads
        self._states = states

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """prometheus_client's: the families."""
        held = GaugeMetricFamily("fngate_held", "Requests that wait.", labels=["pool"])
        in_flight = GaugeMetricFamily("fngate_in_flight", "Requests at replicas.", labels=["pool"])
        for pool, load in self._loads().items():
            held.add_metric([pool], load.queued)
            in_flight.add_metric([pool], load.in_flight)
        state = GaugeMetricFamily(
            "fngate_pool_state", "1 for the state a pool is in.", labels=["pool", "state"]
        )
        for pool, name in self._states().items():
            state.add_metric([pool, name], 1)
        return [held, in_flight, state]


class _Tasks(Collector):
    """What the server does in the background, its connections included, at that moment."""

    def __init__(self, tasks: Callable[[], int]) -> None:
        self._tasks = tasks

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """prometheus_client's: the family."""
        return [GaugeMetricFamily("fngate_tasks", "Tasks of the server's loop.", self._tasks())]
