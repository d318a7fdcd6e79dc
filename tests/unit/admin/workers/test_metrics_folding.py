"""Tests of how many functions a page shows."""

from __future__ import annotations

import pytest

from admin.workers.metrics import LabelLimit, Numbers
from admin.workers.shared_counters import Sample
from gateway.metrics.requests import OTHERS

LEFT_OUT = Sample("fngate_access_events_left_out_total", ())


def requests(function: str) -> Sample:
    labels = ("namespace", "default", "function", function, "outcome", "ok")
    return Sample("fngate_requests_total", labels)


def numbers(**counts: float) -> Numbers:
    return {requests(name): count for name, count in counts.items()}


@pytest.fixture
def deployed() -> set[str]:
    return {"a", "b", "c"}


@pytest.fixture
def folding(deployed: set[str]) -> LabelLimit:
    return LabelLimit(lambda _namespace, name: name in deployed, functions_max=1)


def test_functions_beyond_the_limit_are_added_up(folding: LabelLimit) -> None:
    """With what the processes counted for others themselves; what is of no function stays."""
    given = {LEFT_OUT: 9.0, **numbers(a=1.0, b=2.0, c=3.0), requests(OTHERS): 4.0}

    assert folding.apply(given) == {LEFT_OUT: 9.0, requests("a"): 1.0, requests(OTHERS): 9.0}


def test_who_was_shown_alone_stays_so(folding: LabelLimit) -> None:
    """Whatever comes first on a later page."""
    folding.apply(numbers(a=1.0))

    assert folding.apply(numbers(b=2.0, a=1.0)) == {requests("a"): 1.0, requests(OTHERS): 2.0}


def test_the_others_do_not_fall_when_one_of_them_goes(
    folding: LabelLimit, deployed: set[str]
) -> None:
    """A counter that falls is taken for one that began anew: also while a process has not heard."""
    folding.apply(numbers(a=1.0, b=2.0, c=3.0))
    deployed.discard("b")
    folding.forget(("default", "b"))

    assert folding.apply(numbers(a=1.0, b=2.0, c=3.0))[requests(OTHERS)] == 5.0
    assert folding.apply(numbers(a=1.0, c=4.0))[requests(OTHERS)] == 6.0


def test_a_removed_function_makes_room_for_the_next(
    folding: LabelLimit, deployed: set[str]
) -> None:
    """Its own numbers are gone."""
    folding.apply(numbers(a=1.0))
    deployed.discard("a")
    folding.forget(("default", "a"))

    assert folding.apply(numbers(a=1.0, b=2.0)) == {requests("b"): 2.0}
