"""What `/metrics` shows of this moment: the ledger, what is held and in flight, states of pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.ledger import HOWS, Balance


class Gauges(Collector):
    """As it was at the last look: all of one page is of one moment."""

    def __init__(
        self,
        balance: Callable[[], Balance],
        states: Callable[[], dict[str, str]],
        tasks: Callable[[], int],
    ) -> None:
        self._balance = balance
        self._states = states
        self._tasks = tasks
        self._seen: tuple[Balance, dict[str, str], int] = (Balance(), {}, 0)

    def look(self) -> None:
        """Read it now; nobody changes what is read while a thread shows it."""
        self._seen = self._balance(), self._states(), self._tasks()

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: the families."""
        balance, states, count = self._seen
        state = GaugeMetricFamily(
            "fngate_pool_state",
            "1 for the state a pool is in; a pool that is cold and not called is left out.",
            labels=["pool", "state"],
        )
        for pool, name in states.items():
            state.add_metric([pool, name], 1)
        tasks = GaugeMetricFamily("fngate_tasks", "Tasks of the server's loop.", count)
        return [*_ledger(balance), state, tasks]


def _ledger(balance: Balance) -> list[Metric]:
    accepted = CounterMetricFamily(
        "fngate_accepted",
        "Requests that were accepted: each ends in one way of fngate_ended_total.",
        balance.accepted,
    )
    ended = CounterMetricFamily(
        "fngate_ended", "Accepted requests that have ended, and how.", labels=["how"]
    )
    for how in HOWS:
        ended.add_metric([how], balance.ended.get(how, 0.0))
    unended = GaugeMetricFamily(
        "fngate_open_requests", "Accepted requests that have not ended.", labels=["where"]
    )
    held = GaugeMetricFamily("fngate_held", "Requests that wait.", labels=["pool"])
    in_flight = GaugeMetricFamily("fngate_in_flight", "Requests at replicas.", labels=["pool"])
    for where, family, counts in (
        ("held", held, balance.held),
        ("in_flight", in_flight, balance.in_flight),
    ):
        unended.add_metric([where], sum(counts.values()))
        for pool, count in counts.items():
            family.add_metric([pool], count)
    return [accepted, ended, unended, held, in_flight]
