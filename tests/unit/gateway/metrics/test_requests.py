"""Tests of the families of requests, gauges and rate samples."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import requests
from gateway.metrics.counters import OPENMETRICS, SPARE, LocalStore
from gateway.metrics.ledger import ENDINGS, Balance
from gateway.metrics.requests import (
    OTHERS,
    REPLICAS_MAX,
    ROWS,
    SECONDS,
    SENDS,
    Metrics,
    StateGauges,
)
from gateway.replies import Receipt
from registry.catalog import Change
from runtime_image.link.meta import AnswerMeta

META = AnswerMeta("application/json", 0, 0, 0, 0, 1)


def exists(_namespace: str, _name: str) -> bool:
    """Return True: every function is deployed."""
    return True


def metrics(
    balance: Balance | None = None, states: dict[str, str] | None = None, **more: Any
) -> Metrics:
    """Return the metrics of a gateway with these pools."""
    return Metrics(lambda: balance or Balance(), lambda: states or {}, lambda: 3, exists, **more)


def samples(page: Metrics) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values, sorted by label."""
    page.snapshot()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.render().decode())
        for sample in family.samples
    }


def receipt(*, cold: bool, first: bool, replica: str = "r") -> Receipt:
    """Return a receipt; a cold one has a load phase of 2 s."""
    return Receipt("f@1", replica, ("cpu:0",), 500.0, {"load": 2000.0} if cold else {}, first, META)


def test_answers_are_counted_by_outcome_and_timed() -> None:
    """Each answer counts once under its outcome; its duration goes into the histogram."""
    page = metrics()
    page.count_reply("default", "f", "ok", "", 0.02)
    page.count_reply("default", "f", "ok", "", 0.02)
    page.count_reply("default", "f", "refused", "queue_full", 0.001)

    found = samples(page)

    assert found["fngate_requests_total", "f", "default", "ok", ""] == 2
    assert found["fngate_requests_total", "f", "default", "refused", "queue_full"] == 1
    assert found["fngate_request_seconds_count", "f", "default"] == 3
    assert found["fngate_request_seconds_bucket", "f", "0.01", "default"] == 1


def test_queue_time_is_recorded_in_seconds() -> None:
    """Each answer's queue time is added in seconds."""
    page = metrics()
    page.count_answer(("default", "f"), 0.0, receipt(cold=False, first=False), 1, 0)

    assert samples(page)["fngate_queue_seconds_sum", "f", "default"] == 0.5


def test_a_cold_start_counts_once() -> None:
    """A replica's cold start is counted once, whatever the number of requests that waited for
    it."""
    page = metrics()
    page.count_answer(("default", "f"), 0.0, receipt(cold=True, first=True), 1, 0)
    page.count_answer(("default", "f"), 0.0, receipt(cold=True, first=True), 1, 0)
    page.count_answer(("default", "f"), 0.0, receipt(cold=True, first=False), 1, 0)
    page.count_answer(("default", "f"), 0.0, receipt(cold=False, first=True), 1, 0)

    found = samples(page)

    assert found["fngate_cold_start_seconds_count", "f", "default", "load"] == 1
    assert found["fngate_cold_start_seconds_sum", "f", "default", "load"] == 2.0


def test_the_memory_of_counted_cold_starts_is_bounded() -> None:
    """Beyond REPLICAS_MAX the oldest replica is forgotten."""
    page = metrics()
    for number in range(REPLICAS_MAX + 1):
        page.count_answer(
            ("default", "f"), 0.0, receipt(cold=True, first=True, replica=str(number)), 1, 0
        )
    page.count_answer(("default", "f"), 0.0, receipt(cold=True, first=True, replica="0"), 1, 0)

    found = samples(page)

    assert found["fngate_cold_start_seconds_count", "f", "default", "load"] == REPLICAS_MAX + 2


def test_pools_are_read_at_the_scrape() -> None:
    """Held, in flight and state are those at the time of the scrape."""
    held: dict[str, int] = {}
    in_flight: dict[str, int] = {}
    states: dict[str, str] = {}
    balance = Balance(5.0, {}, held, in_flight)
    page = Metrics(lambda: balance, lambda: states, lambda: 3, exists)
    before = samples(page)
    held["default/f@1"], in_flight["default/f@1"] = 3, 2
    states["default/f@1"] = "waking"

    found = samples(page)

    assert not any("default/f@1" in key for key in before)
    assert found["fngate_held", "default/f@1"] == 3
    assert found["fngate_in_flight", "default/f@1"] == 2
    assert found["fngate_open_requests", "held"] == 3
    assert found["fngate_open_requests", "in_flight"] == 2
    assert found["fngate_accepted_total",] == 5
    assert found["fngate_pool_state", "default/f@1", "waking"] == 1


def test_two_servers_in_one_process_do_not_share_counters() -> None:
    """Each instance has its own registry."""
    first, second = metrics(), metrics()
    first.count_reply("default", "f", "ok", "", 0.1)

    assert ("fngate_requests_total", "f", "default", "ok", "") not in samples(second)


def test_sends_and_their_reasons_are_counted() -> None:
    """The first send is no retry, and the last of `n` deaths causes no retry if there were only `n`
    sends."""
    page = metrics()
    page.count_sends("default", "f", 1, 0)
    page.count_sends("default", "f", 4, 1)
    page.count_sends("default", "f", 3, 3)

    found = samples(page)

    assert found["fngate_request_sends_bucket", "f", "1.0", "default"] == 1
    assert found["fngate_request_sends_bucket", "f", "3.0", "default"] == 2
    assert found["fngate_request_sends_sum", "f", "default"] == 8
    assert found["fngate_retries_total", "f", "default", "died"] == 3
    assert found["fngate_retries_total", "f", "default", "not_started"] == 2


def test_a_request_that_was_sent_once_makes_no_counter() -> None:
    """The usual request costs one observation and no retry counter."""
    page = metrics()
    page.count_sends("default", "f", 1, 1)

    assert not any(name == "fngate_retries_total" for name, *_ in samples(page))


def test_background_tasks_are_counted_at_the_scrape() -> None:
    """The number of tasks is that at the time of the scrape."""
    running = [1]
    page = Metrics(Balance, dict, lambda: running[0], exists)
    before = samples(page)["fngate_tasks",]
    running[0] = 7

    assert before == 1
    assert samples(page)["fngate_tasks",] == 7


def test_functions_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond FUNCTIONS_MAX, functions share one series: the page is bounded and no request is
    missing."""
    monkeypatch.setattr(requests, "FUNCTIONS_MAX", 2)
    page = metrics()
    for name in ("a", "b", "c", "d", "c", "a"):
        page.count_answer(
            ("default", name), 0.0, receipt(cold=True, first=True, replica=name), 1, 0
        )

    found = samples(page)

    counts = {key[1]: n for key, n in found.items() if key[0] == "fngate_requests_total"}
    assert counts == {"a": 2, "b": 1, OTHERS: 3}
    assert found["fngate_request_seconds_count", OTHERS, "default"] == 3
    assert found["fngate_queue_seconds_count", OTHERS, "default"] == 3
    assert found["fngate_cold_start_seconds_count", OTHERS, "default", "load"] == 2


def test_a_removed_function_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its series are removed, and the next function gets its own."""
    monkeypatch.setattr(requests, "FUNCTIONS_MAX", 1)
    page = metrics()
    page.count_reply("default", "a", "ok", "", 0.1)
    page.count_reply("default", "a", "refused", "queue_full", 0.1)
    page.count_answer(("default", "a"), 0.0, receipt(cold=True, first=True), 1, 0)

    page.on_change(Change("put", "default", "a", None, None, (1,)))
    assert any("a" in key for key in samples(page))
    page.on_change(Change("remove", "default", "a", None, None))
    page.on_change(Change("remove", "default", "never-called", None, None))
    assert not any("a" in key for key in samples(page))

    page.count_reply("default", "b", "ok", "", 0.1)
    assert samples(page)["fngate_requests_total", "b", "default", "ok", ""] == 1


def test_the_last_answers_of_a_removed_function_are_counted_with_the_others() -> None:
    """An answer that arrives after the removal counts to the shared series: it does not recreate
    series that would never be removed, and the total stays right."""
    page = Metrics(Balance, dict, lambda: 0, lambda _namespace, name: name != "gone")
    page.count_answer(("default", "gone"), 0.0, receipt(cold=True, first=True), 1, 0)
    page.count_sends("default", "gone", 1, 0)

    found = samples(page)

    assert not any("gone" in key for key in found)
    assert found["fngate_requests_total", OTHERS, "default", "ok", ""] == 1


def test_a_page_shows_pools_as_of_its_snapshot() -> None:
    """Rendering runs in a thread and reads nothing that the event loop may change."""
    states = {"default/f@1": "warm"}
    page = Metrics(Balance, lambda: dict(states), lambda: 0, exists)
    page.snapshot()
    before = page.render()
    states.clear()

    assert page.render() == before


def test_cold_starts_may_be_counted_elsewhere() -> None:
    """Where several workers wait for one replica, the supervisor counts its cold start once."""
    told: list[tuple[object, ...]] = []
    page = metrics(on_cold_start=lambda *given: told.append(given))
    page.count_answer(("default", "f"), 0.0, receipt(cold=True, first=True), 1, 0)

    assert told == [("default", "f", "r", {"load": 2000.0}, None)]
    assert not any(key[0].startswith("fngate_cold_start") for key in samples(page))
    for _ in range(2):
        page.count_cold_start("default", "f", "r", {"load": 2000.0})
    assert samples(page)["fngate_cold_start_seconds_count", "f", "default", "load"] == 1


def test_a_served_request_may_have_been_sent_again() -> None:
    """Three sends with one death count as one retry for the death and one for a return."""
    page = metrics()
    page.count_answer(("default", "f"), 0.1, receipt(cold=False, first=False), 3, 1)

    found = samples(page)

    assert found["fngate_request_sends_sum", "f", "default"] == 3
    assert found["fngate_retries_total", "f", "default", "died"] == 1
    assert found["fngate_retries_total", "f", "default", "not_started"] == 1
    assert found["fngate_requests_total", "f", "default", "ok", ""] == 1


def test_a_request_with_an_id_is_an_exemplar() -> None:
    """The request is the exemplar of its duration, queue time and cold start, with wall-clock
    time."""
    page = Metrics(Balance, dict, lambda: 0, exists, wall=lambda: 100.0)
    page.count_answer(
        ("default", "f"), 0.02, receipt(cold=True, first=True), 1, 0, ("request_id", "a")
    )
    text = page.render(OPENMETRICS).decode()

    rows = [line for line in text.splitlines() if line.endswith(" 100.0")]
    assert [line.partition("{")[0] for line in rows] == [
        "fngate_request_seconds_bucket",
        "fngate_queue_seconds_bucket",
        "fngate_cold_start_seconds_bucket",
    ]
    assert all('# {request_id="a"}' in line for line in rows)
    assert {one.name for one in page.newest_exemplars()} == {
        line.partition("{")[0] for line in rows
    }


def test_a_batch_is_counted_by_its_rows() -> None:
    """Each answered request counts the rows of its batch."""
    page = metrics()
    page.count_answer(("default", "f"), 0.02, receipt(cold=False, first=False), 1, 0)

    assert samples(page)["fngate_batch_rows_bucket", "f", "1.0", "default"] == 1


async def test_added_sources_are_on_the_page() -> None:
    """An added source takes its snapshot with the page's."""

    class Other:
        """Source that counts its snapshots."""

        taken = 0

        def snapshot(self) -> None:
            """Count one more."""
            self.taken += 1

        def collect(self) -> list[GaugeMetricFamily]:
            """Return the count as a gauge."""
            return [GaugeMetricFamily("taken", "text", self.taken)]

    page = metrics()
    page.add_source(Other())

    assert samples(page)["taken",] == 1


def test_cold_starts_alone_bring_no_other_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor counts cold starts only: a request series there would duplicate the workers'.
    The limit of functions holds too."""
    monkeypatch.setattr(requests, "FUNCTIONS_MAX", 1)
    page = metrics()
    page.count_cold_start("default", "f", "r1", {"load": 2000.0})
    page.count_cold_start("default", "g", "r2", {"load": 2000.0})
    found = samples(page)

    assert not any(key[0].startswith("fngate_request") for key in found)
    assert found["fngate_cold_start_seconds_count", "f", "default", "load"] == 1
    assert found["fngate_cold_start_seconds_count", OTHERS, "default", "load"] == 1
    page.on_change(Change("remove", "default", "f", None, None))
    assert not any("f" in key for key in samples(page))


def test_a_wake_is_not_counted_as_a_cold_start() -> None:
    """Nor does it hide the cold start of its replica, which may be reported later."""
    page = metrics()
    page.count_cold_start("default", "f", "r1", {"place": 1.0, "wake": 2.0, "verify": 3.0})
    assert "fngate_cold_start_seconds_count" not in {key[0] for key in samples(page)}

    page.count_cold_start("default", "f", "r1", {"place": 1.0, "load": 2000.0})

    assert samples(page)["fngate_cold_start_seconds_count", "f", "default", "load"] == 1


def test_dropped_access_events_are_counted() -> None:
    """The counter starts at 0."""
    page = metrics()
    assert samples(page)["fngate_access_events_left_out_total",] == 0
    page.count_dropped_events(3)

    assert samples(page)["fngate_access_events_left_out_total",] == 3


def test_functions_that_come_and_go_are_bounded() -> None:
    """Freed counters are reused and never shared: a function that stays keeps its counts, a new one
    starts at 0."""
    store = LocalStore()
    page = Metrics(Balance, dict, lambda: 3, exists, store)
    for number in range(500):
        name = f"g{number}"
        for key in (("default", "f"), ("default", name)):
            page.count_answer(key, 0.02, receipt(cold=True, first=True, replica=name), 2, 1)
            page.count_reply(*key, "refused", "queue_full", 0.001)
        if number % 100 == 0:
            found = samples(page)
            assert found["fngate_requests_total", name, "default", "ok", ""] == 1
            assert found["fngate_requests_total", "f", "default", "ok", ""] == number + 1
            assert found["fngate_request_seconds_count", name, "default"] == 2
        page.on_change(Change("remove", "default", name, None, None))

    found = samples(page)
    assert found["fngate_requests_total", "f", "default", "ok", ""] == 500
    assert found["fngate_request_seconds_count", "f", "default"] == 1000
    assert found["fngate_retries_total", "f", "default", "died"] == 500
    assert {key[1] for key in found if key[0] == "fngate_requests_total"} == {"f"}
    assert len(store.values) < SPARE + 300


def gauge_samples(gauges: StateGauges) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }


def test_the_ledger_has_every_series_from_the_start() -> None:
    """Every ending and state is exported as 0, so that zero differs from unknown."""
    found = gauge_samples(StateGauges(Balance, dict, lambda: 3))

    assert found["fngate_accepted_total",] == 0
    assert {key[1] for key in found if key[0] == "fngate_ended_total"} == set(ENDINGS)
    assert found["fngate_open_requests", "held"] == found["fngate_open_requests", "in_flight"] == 0
    assert not any(key[0] == "fngate_held" for key in found)


def test_all_gauges_are_of_one_snapshot() -> None:
    """Changes after the snapshot appear in the next one."""
    now = [Balance(3, {"completed": 1}, {"a": 1}, {"a": 1})]
    states = {"a": "warm"}
    gauges = StateGauges(lambda: now[0], lambda: dict(states), lambda: 7)
    gauges.snapshot()
    now[0] = Balance(9)
    states.clear()

    assert {key: value for key, value in gauge_samples(gauges).items() if value} == {
        ("fngate_accepted_total",): 3,
        ("fngate_ended_total", "completed"): 1,
        ("fngate_open_requests", "held"): 1,
        ("fngate_open_requests", "in_flight"): 1,
        ("fngate_held", "a"): 1,
        ("fngate_in_flight", "a"): 1,
        ("fngate_pool_state", "a", "warm"): 1,
        ("fngate_tasks",): 7,
    }


F = ("default", "f")


@pytest.mark.parametrize("bounds", [SECONDS, SENDS, ROWS])
def test_bounds_are_sorted_and_unique(bounds: tuple[float, ...]) -> None:
    """Bounds rise strictly, so that a value belongs to one bucket only."""
    assert list(bounds) == sorted(set(bounds))
