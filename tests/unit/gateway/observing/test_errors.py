from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.dispatch.call import Call
from gateway.observing import errors
from gateway.observing.errors import DETAIL_MAX, KEPT_MAX, Failure, FailureCount, RecentFailures
from registry.errors import BadInput, BodyTooLarge, FnError, Poison, QueueFull, ReplicaDied
from tests.support.nouns import deployed

DIGITS = deployed("digits", 3)
FIELDS: dict[str, Any] = {"arrived_s": 0.0, "wait_until_s": 0.0, "timeout_s": 0.0}


@pytest.fixture
def count() -> FailureCount:
    return FailureCount(lambda: 5.0)


def call(**fields: Any) -> Call:
    return Call("default/digits@4", cast("Any", None), b"", **{**FIELDS, **fields})


def failure(at_s: float = 1.0, name: str = "digits", code: str = "poison") -> Failure:
    return Failure("default", name, f"{name}@1", code, at_s, "why", "r1", "q1")


def test_alike_errors_are_counted_together(count: FailureCount) -> None:
    """The first one says what and where; a take begins anew."""
    sent = call(link="a1", sends=1)
    for number in range(3):
        count.count(DIGITS, ReplicaDied(f"no {number}"), sent, f"q{number}")
    count.count(DIGITS, QueueFull("too many"), None, "q9")

    assert count.drain() == [
        Failure("default", "digits", "digits@4", "replica_died", 5.0, "no 0", "a1", "q0", 3),
        Failure("default", "digits", "digits@3", "queue_full", 5.0, "too many", "", "q9"),
    ]
    assert count.drain() == []


def test_clients_mistakes_are_their_own(count: FailureCount) -> None:
    """Nobody who runs a function wants to know of them."""
    for error in (BadInput("no"), BodyTooLarge("no")):
        count.count(DIGITS, error, None, "q")

    assert count.drain() == []


def test_what_was_never_sent_has_no_replica(count: FailureCount) -> None:
    """A call that waited in vain names none."""
    count.count(DIGITS, ReplicaDied("no"), call(), "q")

    assert count.drain()[0].replica == ""


def test_counting_is_bounded(count: FailureCount, monkeypatch: pytest.MonkeyPatch) -> None:
    """In kinds, and in what is kept of a text, which may be no text."""
    monkeypatch.setattr(errors, "PENDING_MAX", 1)
    count.count(DIGITS, FnError("\ud800" + "x" * 10_000), None, "q")
    count.count(DIGITS, Poison("another"), None, "q")
    count.count(DIGITS, FnError("x"), None, "q")

    [taken] = count.drain()
    assert (taken.detail, taken.count) == ("?" + "x" * (DETAIL_MAX - 1), 2)


def test_the_newest_come_first() -> None:
    """Whatever process said it first."""
    recent = RecentFailures()
    recent.add([failure(1.0, code="a"), failure(3.0, code="b")])
    recent.add([failure(2.0, code="c")])

    assert [one.code for one in recent.of("default", "digits")] == ["b", "c", "a"]
    assert recent.of("default", "other") == []


def test_alike_errors_of_several_processes_are_one() -> None:
    """Within a second; whoever was told of the first is not told of more in its place."""
    recent, told = RecentFailures(), list[list[Failure]]()
    undo = recent.subscribe(told.append)
    recent.add([failure(1.0)])
    recent.add([failure(1.5), failure(2.5)])

    assert [(one.at_s, one.count) for one in recent.of("default", "digits")] == [(2.5, 1), (1.0, 2)]
    undo()
    recent.add([failure(9.0)])
    assert [[one.count for one in several] for several in told] == [[1], [1, 1]]


def test_a_clock_that_is_put_back_hides_nothing() -> None:
    """What comes after is no part of what seems to have been later."""
    recent = RecentFailures()
    recent.add([failure(5000.0)])
    recent.add([failure(1000.0)])

    assert [(one.at_s, one.count) for one in recent.of("default", "digits")] == [
        (5000.0, 1),
        (1000.0, 1),
    ]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of a function, and so many functions: those that failed last."""
    monkeypatch.setattr(errors, "FUNCTIONS_MAX", 2)
    recent = RecentFailures()
    recent.add(failure(10.0 * number) for number in range(KEPT_MAX + 5))
    recent.add([failure(name="b"), failure(2000.0), failure(name="c")])

    assert len(recent.of("default", "digits")) == KEPT_MAX
    assert recent.of("default", "b") == []
    assert len(recent.of("default", "c")) == 1


def test_a_function_that_is_gone_is_forgotten() -> None:
    """Another one of its name begins anew; to forget twice does no harm."""
    recent = RecentFailures()
    recent.add([failure()])

    recent.forget("default", "digits")
    recent.forget("default", "digits")

    assert recent.of("default", "digits") == []


def test_a_bad_listener_costs_nobody_else() -> None:
    """Its error ends with it, and nothing is no news."""
    recent, told = RecentFailures(), list[list[Failure]]()

    def fails(_several: list[Failure]) -> None:
        raise ValueError

    recent.subscribe(fails)
    recent.add([failure(1.0)])
    recent.subscribe(told.append)
    recent.add([])
    recent.add([failure(5.0)])

    assert told == [[failure(5.0)]]
    assert len(recent.of("default", "digits")) == 2
