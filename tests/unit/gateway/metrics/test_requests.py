"""Tests of the families of requests, and of rate samples."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import requests
from gateway.metrics.counters import OPENMETRICS, SPARE, TEXT, LocalStore
from gateway.metrics.requests import (
    OTHERS,
    ROWS,
    SECONDS,
    SENDS,
    Metrics,
)
from gateway.replies import Receipt
from registry.catalog import Change
from runtime_image.link.meta import AnswerMeta

META = AnswerMeta("application/json", 0, 0, 0, 0, 1)


def exists(_namespace: str, _name: str) -> bool:
    """Return True: every function is deployed."""
    return True


def metrics(**more: Any) -> Metrics:
    """Return the metrics of a gateway."""
    return Metrics(exists, **more)


def samples(page: Metrics) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values, sorted by label."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(TEXT.encode(page).decode())
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
    page = Metrics(lambda _namespace, name: name != "gone")
    page.count_answer(("default", "gone"), 0.0, receipt(cold=True, first=True), 1, 0)
    page.count_sends("default", "gone", 1, 0)

    found = samples(page)

    assert not any("gone" in key for key in found)
    assert found["fngate_requests_total", OTHERS, "default", "ok", ""] == 1


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
    """The request is the exemplar of its duration and queue time, with wall-clock time."""
    page = metrics(wall=lambda: 100.0)
    page.count_answer(
        ("default", "f"), 0.02, receipt(cold=True, first=True), 1, 0, ("request_id", "a")
    )
    text = OPENMETRICS.encode(page).decode()

    rows = [line for line in text.splitlines() if line.endswith(" 100.0")]
    assert [line.partition("{")[0] for line in rows] == [
        "fngate_request_seconds_bucket",
        "fngate_queue_seconds_bucket",
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
    page = metrics(store=store)
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


F = ("default", "f")


@pytest.mark.parametrize("bounds", [SECONDS, SENDS, ROWS])
def test_bounds_are_sorted_and_unique(bounds: tuple[float, ...]) -> None:
    """Bounds rise strictly, so that a value belongs to one bucket only."""
    assert list(bounds) == sorted(set(bounds))


def test_cold_starts_are_passed_on() -> None:
    """A request that waited for a cold start is told with its replica; the server counts it."""
    told: list[tuple[object, ...]] = []
    page = metrics(on_cold_start=lambda *given: told.append(given))
    page.count_answer(("default", "f"), 0.0, receipt(cold=True, first=True), 1, 0)
    page.count_answer(("default", "f"), 0.0, receipt(cold=False, first=False), 1, 0)

    assert told == [("default", "f", "r", {"load": 2000.0}, None)]
    assert not any(key[0].startswith("fngate_cold_start") for key in samples(page))
