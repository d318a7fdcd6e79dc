"""What `/metrics` shows of requests, pools and cold starts (Prometheus text format)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.answers.receipt import Receipt
from gateway.observing.counting import Counts, Distribution, Distributions, Memory, Number, Store
from registry.catalog import Change
from registry.exchange import Load
from runtime_image.contract.control import PHASES

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LABELS = ("namespace", "function")
SENDS = (1, 2, 3, 4, 6, 12)
RETRIES = ("died", "not_started")
FUNCTIONS_MAX = 1000
"""Functions with series of their own, the first ones called; each is 4 kB of the page."""
OTHERS = "_others"
"""The function of all beyond; no name begins like this."""
REPLICAS_MAX = 1000
"""Replicas whose cold starts are remembered as counted, the newest."""


@dataclass(slots=True)
class _Series:
    """One function's children. Binding them costs more than using them: each is bound once."""

    labels: tuple[str, str]
    duration: Distribution
    queue: Distribution
    sends: Distribution
    outcomes: dict[str, Number] = field(default_factory=dict)


class Metrics:
    """Labels are names of deployed functions and error codes only, and functions beyond
    FUNCTIONS_MAX are counted together, so the page is bounded.

    `loads` gives what is held and in flight now, `states` the states of pools not at rest,
    `tasks` how much goes on in the background, `is_deployed` whether a function of that namespace
    and name exists.
    """

    def __init__(
        self,
        loads: Callable[[], dict[str, Load]],
        states: Callable[[], dict[str, str]],
        tasks: Callable[[], int],
        is_deployed: Callable[[str, str], bool],
        store: Store | None = None,
    ) -> None:
        """`store` has whatever is counted, without one this process's own memory."""
        store = store or Memory()
        self._is_deployed = is_deployed
        self._registry = CollectorRegistry()
        self._requests = Counts(
            "fngate_requests",
            "Requests answered, by outcome: ok or the problem's code.",
            (*LABELS, "outcome"),
            store,
        )
        self._retries = Counts(
            "fngate_retries",
            "Requests sent again: their replica died while it ran them, or never started them.",
            (*LABELS, "reason"),
            store,
        )
        self._make_distributions(store)
        self._pools = _Pools(loads, states, tasks)
        for collector in (
            self._requests,
            self._duration,
            self._queue,
            self._phases,
            self._sends,
            self._retries,
            self._pools,
        ):
            self._registry.register(collector)
        self._series: dict[tuple[str, str], _Series] = {}
        self._others: _Series | None = None
        self.on_cold_start: Callable[[str, str, str, Mapping[str, float]], None] = self.cold_start
        """Told whenever a request waited for a cold start; another than `cold_start` where several
        processes may have waited for the same one."""

    def _make_distributions(self, store: Store) -> None:
        text = "From the last byte of the request to its answer."
        self._duration = Distributions("fngate_request_seconds", text, LABELS, SECONDS, store)
        text = "Time a request waited for a replica."
        self._queue = Distributions("fngate_queue_seconds", text, LABELS, SECONDS, store)
        text = "Times a request was sent to a replica before it was answered."
        self._sends = Distributions("fngate_request_sends", text, LABELS, SENDS, store)
        # Each replica's once, whoever waited for it.
        text, labels = "Phases of cold starts that requests waited for.", (*LABELS, "phase")
        self._phases = Distributions("fngate_cold_start_seconds", text, labels, SECONDS, store)
        self._counted: dict[str, None] = {}

    def answered(self, namespace: str, function: str, outcome: str, seconds: float) -> None:
        """One request was answered."""
        series = self._series.get((namespace, function)) or self._begin(namespace, function)
        counter = series.outcomes.get(outcome)
        if counter is None:
            counter = series.outcomes[outcome] = self._requests.of(*series.labels, outcome)
        counter.inc(1.0)
        series.duration.observe(seconds)

    def served(
        self, key: tuple[str, str], seconds: float, receipt: Receipt, sends: int, deaths: int
    ) -> None:
        """A replica answered a request of the function with this namespace and name, which was
        sent so often; so many replicas died while they ran it."""
        series = self._series.get(key) or self._begin(*key)
        counter = series.outcomes.get("ok")
        if counter is None:
            counter = series.outcomes["ok"] = self._requests.of(*series.labels, "ok")
        counter.inc(1.0)
        series.duration.observe(seconds)
        series.queue.observe(receipt.queue_ms / 1e3)
        if receipt.phases:
            self.on_cold_start(*key, receipt.replica, receipt.phases)
        if sends == 1:
            series.sends.observe(1)
        else:
            self.sent(*key, sends, deaths)

    def sent(self, namespace: str, function: str, sends: int, deaths: int) -> None:
        """A request is over that was sent so often; so many replicas died while they ran it."""
        series = self._series.get((namespace, function)) or self._begin(namespace, function)
        series.sends.observe(sends)
        if sends > 1:
            # The last death of a request that was given up led to no other send.
            died = min(deaths, sends - 1)
            self._retries.of(*series.labels, "died").inc(died)
            self._retries.of(*series.labels, "not_started").inc(sends - 1 - died)

    def cold_start(
        self, namespace: str, function: str, replica: str, phases: Mapping[str, float]
    ) -> None:
        """Count a replica's cold start that a request waited for, unless it is counted already.
        Phases are in milliseconds."""
        if not self._is_news(replica):
            return
        series = self._series.get((namespace, function)) or self._begin(namespace, function)
        for phase, ms in phases.items():
            self._phases.of(*series.labels, phase).observe(ms / 1e3)

    def changed(self, change: Change) -> None:
        """The catalog's: what was counted for a removed function goes with it."""
        if change.kind != "remove":
            return
        series = self._series.pop((change.namespace, change.name), None)
        if series is not None:
            for outcome in series.outcomes:
                self._requests.remove(*series.labels, outcome)
            for phase in PHASES:
                self._phases.remove(*series.labels, phase)
            self._duration.remove(*series.labels)
            self._queue.remove(*series.labels)
            self._sends.remove(*series.labels)
            for reason in RETRIES:
                self._retries.remove(*series.labels, reason)

    def durations(self) -> Iterator[tuple[tuple[str, str], Distribution]]:
        """What answers took, of every function with series of its own."""
        return ((key, series.duration) for key, series in self._series.items())

    def _begin(self, namespace: str, function: str) -> _Series:
        """The series of a function counted for the first time, or that of all beyond the limit and
        of removed ones, whose last answers come after they went."""
        if len(self._series) >= FUNCTIONS_MAX or not self._is_deployed(namespace, function):
            self._others = self._others or self._bind(namespace, OTHERS)
            return self._others
        series = self._series[namespace, function] = self._bind(namespace, function)
        return series

    def _bind(self, namespace: str, function: str) -> _Series:
        labels = (namespace, function)
        return _Series(
            labels,
            self._duration.of(*labels),
            self._queue.of(*labels),
            self._sends.of(*labels),
        )

    def _is_news(self, replica: str) -> bool:
        """Whether this replica's cold start is to be counted: many requests may have waited."""
        if replica in self._counted:
            return False
        self._counted[replica] = None
        if len(self._counted) > REPLICAS_MAX:
            del self._counted[next(iter(self._counted))]
        return True

    def look(self) -> None:
        """Read what the page shows of pools; to be called in the loop's thread before `render`."""
        self._pools.look()

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: every family with its samples."""
        return self._registry.collect()

    def render(self) -> bytes:
        """The page; takes milliseconds, so it is to be called in a thread."""
        return generate_latest(self._registry)


class _Pools(Collector):
    """Gauges as they were at the last look."""

    def __init__(
        self,
        loads: Callable[[], dict[str, Load]],
        states: Callable[[], dict[str, str]],
        tasks: Callable[[], int],
    ) -> None:
        self._loads = loads
        self._states = states
        self._tasks = tasks
        self._seen: tuple[dict[str, Load], dict[str, str], int] = ({}, {}, 0)

    def look(self) -> None:
        """Read them now; both are new dicts that nobody changes while a thread reads them."""
        self._seen = self._loads(), self._states(), self._tasks()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """prometheus_client's: the families."""
        loads, states, count = self._seen
        held = GaugeMetricFamily("fngate_held", "Requests that wait.", labels=["pool"])
        in_flight = GaugeMetricFamily("fngate_in_flight", "Requests at replicas.", labels=["pool"])
        for pool, load in loads.items():
            held.add_metric([pool], load.queued)
            in_flight.add_metric([pool], load.in_flight)
        state = GaugeMetricFamily(
            "fngate_pool_state",
            "1 for the state a pool is in; a pool that is cold and not called is left out.",
            labels=["pool", "state"],
        )
        for pool, name in states.items():
            state.add_metric([pool, name], 1)
        tasks = GaugeMetricFamily("fngate_tasks", "Tasks of the server's loop.", count)
        return [held, in_flight, state, tasks]
