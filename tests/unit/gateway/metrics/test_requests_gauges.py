"""Tests of what the page shows of a moment."""

from __future__ import annotations

from gateway.metrics.ledger import ENDINGS, Balance
from gateway.metrics.requests import StateGauges


def samples(gauges: StateGauges) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }


def test_the_ledger_is_there_from_the_start() -> None:
    """Every end and place is shown as 0, or nobody could tell none from not known."""
    found = samples(StateGauges(Balance, dict, lambda: 3))

    assert found["fngate_accepted_total",] == 0
    assert {key[1] for key in found if key[0] == "fngate_ended_total"} == set(ENDINGS)
    assert found["fngate_open_requests", "held"] == found["fngate_open_requests", "in_flight"] == 0
    assert not any(key[0] == "fngate_held" for key in found)


def test_all_of_a_page_is_of_one_look() -> None:
    """What comes after it is for the next."""
    now = [Balance(3, {"completed": 1}, {"a": 1}, {"a": 1})]
    states = {"a": "warm"}
    gauges = StateGauges(lambda: now[0], lambda: dict(states), lambda: 7)
    gauges.snapshot()
    now[0] = Balance(9)
    states.clear()

    assert {key: value for key, value in samples(gauges).items() if value} == {
        ("fngate_accepted_total",): 3,
        ("fngate_ended_total", "completed"): 1,
        ("fngate_open_requests", "held"): 1,
        ("fngate_open_requests", "in_flight"): 1,
        ("fngate_held", "a"): 1,
        ("fngate_in_flight", "a"): 1,
        ("fngate_pool_state", "a", "warm"): 1,
        ("fngate_tasks",): 7,
    }
