"""What `/metrics` shows of requests, pools and cold starts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.answers.receipt import Receipt
from gateway.metrics.counting import (
    Counts,
    Distribution,
    Distributions,
    Memory,
    Number,
    Store,
    newest,
)
from gateway.metrics.exemplars import Labels, Marked
from gateway.metrics.exposition import TEXT, Form
from gateway.metrics.gauges import Gauges
from gateway.metrics.ledger import Balance
from gateway.metrics.series import BUCKET_OF_ROWS, LABELS, ROWS, ROWS_KNOWN, SECONDS, SENDS, Series
from registry.catalog import Change
from runtime_image.contract.control import PHASES

RETRIES = ("died", "not_started")
OK = ("ok", "")
"""Outcome and reason of an answer of a replica."""
FUNCTIONS_MAX = 1000
"""Functions with series of their own, the first ones called; each is 4 kB of the page."""
OTHERS = "_others"
"""The function of all beyond; no name begins like this."""
REPLICAS_MAX = 1000
"""Replicas whose cold starts are remembered as counted, the newest."""
MARKED_MAX = 500
"""Exemplars that one process tells another of, the newest: about 70 kB."""

ColdStartHeard = Callable[[str, str, str, Mapping[str, float], Labels | None], None]


class Source(Protocol):
    """Families of others on the same page."""

    def look(self) -> None:
        """Read what is now; in the loop's thread, before `collect`."""

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: the families; in a thread."""


class Metrics:
    """Labels are names of deployed functions and error codes only, and functions beyond
    FUNCTIONS_MAX are counted together, so the page is bounded.

    `balance` gives the ledger now, `states` the states of pools not at rest, `tasks` how much goes
    on in the background, `is_deployed` whether a function of that namespace and name exists.
    """

    def __init__(
        self,
        balance: Callable[[], Balance],
        states: Callable[[], dict[str, str]],
        tasks: Callable[[], int],
        is_deployed: Callable[[str, str], bool],
        store: Store | None = None,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`store` has whatever is counted, without one this process's own memory; `wall` gives
        Unix seconds."""
        self._is_deployed = is_deployed
        self._wall = wall
        self._registry = CollectorRegistry()
        self._make_counts(store := store or Memory())
        self._values = store.values
        self._gauges = Gauges(balance, states, tasks)
        self._sources: list[Source] = [self._gauges]
        self._registry.register(self._gauges)
        self._series: dict[tuple[str, str], Series] = {}
        self._others: Series | None = None
        self._woken: set[tuple[str, str]] = set()
        # Each replica's cold start once, whoever waited for it.
        self._counted: dict[str, None] = {}
        self.mark_from_s = 0.0
        """When a request is an exemplar next, monotonic seconds; kept by whoever serves."""
        self.on_cold_start: ColdStartHeard = self.cold_start
        """Told whenever a request waited for a cold start; another than `cold_start` where several
        processes may have waited for the same one."""

    def _make_counts(self, store: Store) -> None:
        text = "Requests answered: ok, refused or failed, and then the problem's code."
        self._requests = Counts("fngate_requests", text, (*LABELS, "outcome", "reason"), store)
        text = "Requests sent again: their replica died while it ran them, or never started them."
        self._retries = Counts("fngate_retries", text, (*LABELS, "reason"), store)
        text = "From the last byte of the request to its answer."
        self._duration = Distributions("fngate_request_seconds", text, LABELS, SECONDS, store)
        text = "Time a request waited for a replica."
        self._queue = Distributions("fngate_queue_seconds", text, LABELS, SECONDS, store)
        text = "Times a request was sent to a replica before it was answered."
        self._sends = Distributions("fngate_request_sends", text, LABELS, SENDS, store)
        text = "Rows of the batch that a replica answered a request with."
        self._rows = Distributions("fngate_batch_rows", text, LABELS, ROWS, store)
        text, labels = "Phases of cold starts that requests waited for.", (*LABELS, "phase")
        self._phases = Distributions("fngate_cold_start_seconds", text, labels, SECONDS, store)
        text = "Events of the access log that were left out because it could not be written."
        left_out = Counts("fngate_access_events_left_out", text, (), store)
        self._left_out = left_out.of()
        for collector in (
            self._requests,
            self._duration,
            self._queue,
            self._phases,
            self._sends,
            self._rows,
            self._retries,
            left_out,
        ):
            self._registry.register(collector)

    def add(self, source: Source) -> None:
        """Show another's families, too."""
        self._sources.append(source)
        self._registry.register(_Shown(source))

    def answered(
        self, namespace: str, function: str, outcome: str, reason: str, seconds: float
    ) -> None:
        """One request was answered: "ok", "refused" or "failed", and then the problem's code."""
        series = self._series.get((namespace, function)) or self._begin(namespace, function)
        self._outcome(series, outcome, reason).inc(1.0)
        series.duration.observe(seconds)

    def served(
        self,
        key: tuple[str, str],
        seconds: float,
        receipt: Receipt,
        sends: int,
        deaths: int,
        request: Labels | None = None,
    ) -> None:
        """A replica answered a request of the function with this namespace and name, which was
        sent so often; so many replicas died while they ran it. `request` says whose it was."""
        series = self._series.get(key) or self._begin(*key)
        served = series.served or series.bind_served(self._outcome(series, *OK))
        ok, durations, duration_sum, queues, queue_sum, rows, rows_sum, once, sends_sum = served
        # Counted in place: a call for each histogram costs as much again as all of this.
        values, queue_s, count = self._values, receipt.queue_ms / 1e3, receipt.meta.rows
        values[ok] += 1.0
        values[durations[bisect_left(SECONDS, seconds)]] += 1.0
        values[duration_sum] += seconds
        values[queues[bisect_left(SECONDS, queue_s)]] += 1.0
        values[queue_sum] += queue_s
        values[rows[BUCKET_OF_ROWS[count] if count < ROWS_KNOWN else -1]] += 1.0
        values[rows_sum] += count
        if sends == 1:
            values[once] += 1.0
            values[sends_sum] += 1.0
        else:
            self.sent(*key, sends, deaths)
        if request is not None:
            series.mark(seconds, queue_s, request, self._wall())
        if receipt.phases:
            self.on_cold_start(*key, receipt.replica, receipt.phases, request)

    def _outcome(self, series: Series, outcome: str, reason: str) -> Number:
        counter = series.outcomes.get((outcome, reason))
        if counter is None:
            counter = self._requests.of(*series.labels, outcome, reason)
            series.outcomes[outcome, reason] = counter
        return counter

    def left_out(self, events: int) -> None:
        """So many events of the access log were left out."""
        self._left_out.inc(events)

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
        self,
        namespace: str,
        function: str,
        replica: str,
        phases: Mapping[str, float],
        request: Labels | None = None,
    ) -> None:
        """Count a replica's cold start that a request waited for, unless it is counted already.
        Phases are in milliseconds."""
        if not self._is_news(replica):
            return
        labels = self._woken_labels(namespace, function)
        at_s = self._wall() if request is not None else 0.0
        for phase, ms in phases.items():
            self._phases.of(*labels, phase).observe(ms / 1e3, request, at_s)

    def _woken_labels(self, namespace: str, function: str) -> tuple[str, str]:
        """As `_begin`, but without the other series: where cold starts are counted for several
        processes, these have them."""
        key = (namespace, function)
        if key not in self._woken:
            if len(self._woken) >= FUNCTIONS_MAX or not self._is_deployed(*key):
                return namespace, OTHERS
            self._woken.add(key)
        return key

    def changed(self, change: Change) -> None:
        """The catalog's: what was counted for a removed function goes with it."""
        if change.kind != "remove":
            return
        key = (change.namespace, change.name)
        self._woken.discard(key)
        for phase in PHASES:
            self._phases.remove(*key, phase)
        series = self._series.pop(key, None)
        if series is not None:
            for outcome in series.outcomes:
                self._requests.remove(*series.labels, *outcome)
            self._duration.remove(*series.labels)
            self._queue.remove(*series.labels)
            self._sends.remove(*series.labels)
            self._rows.remove(*series.labels)
            for reason in RETRIES:
                self._retries.remove(*series.labels, reason)

    def durations(self) -> Iterator[tuple[tuple[str, str], Distribution]]:
        """What answers took, of every function with series of its own."""
        return ((key, series.duration) for key, series in self._series.items())

    def _begin(self, namespace: str, function: str) -> Series:
        """The series of a function counted for the first time, or that of all beyond the limit and
        of removed ones, whose last answers come after they went."""
        if len(self._series) >= FUNCTIONS_MAX or not self._is_deployed(namespace, function):
            self._others = self._others or self._bind(namespace, OTHERS)
            return self._others
        series = self._series[namespace, function] = self._bind(namespace, function)
        return series

    def _bind(self, namespace: str, function: str) -> Series:
        labels = (namespace, function)
        return Series(
            labels,
            self._duration.of(*labels),
            self._queue.of(*labels),
            self._sends.of(*labels),
            self._rows.of(*labels),
        )

    def _is_news(self, replica: str) -> bool:
        """Whether this replica's cold start is to be counted: many requests may have waited."""
        if replica in self._counted:
            return False
        self._counted[replica] = None
        if len(self._counted) > REPLICAS_MAX:
            del self._counted[next(iter(self._counted))]
        return True

    async def ask(self) -> None:
        """All that the page shows is known here: there is nobody to ask."""

    def look(self) -> None:
        """Read what the page shows of this moment; to be called in the loop's thread before
        `render`."""
        for source in self._sources:
            source.look()

    def marked(self) -> list[Marked]:
        """The newest exemplars, MARKED_MAX at most."""
        return newest((self._duration, self._queue, self._phases), MARKED_MAX)

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: every family with its samples."""
        return self._registry.collect()

    def render(self, form: Form = TEXT) -> bytes:
        """The page; takes milliseconds, so it is to be called in a thread."""
        return form.encode(self._registry)


class _Shown(Collector):
    """A source as prometheus_client wants it."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: the families."""
        return self._source.collect()
