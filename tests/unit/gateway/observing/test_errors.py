"""Tests of failure counts per function, and of the list of recent failures."""

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


def test_equal_errors_are_counted_together(count: FailureCount) -> None:
    """Errors of the same revision and code share one entry with the first one's detail; `drain`
    resets the counts."""
    sent = call(link="a1", sends=1)
    for number in range(3):
        count.count(DIGITS, ReplicaDied(f"no {number}"), sent, f"q{number}")
    count.count(DIGITS, QueueFull("too many"), None, "q9")

    assert count.drain() == [
        Failure("default", "digits", "digits@4", "replica_died", 5.0, "no 0", "a1", "q0", 3),
        Failure("default", "digits", "digits@3", "queue_full", 5.0, "too many", "", "q9"),
    ]
    assert count.drain() == []


def test_client_errors_are_not_counted(count: FailureCount) -> None:
    """Errors that the client caused are not failures of the function."""
    for error in (BadInput("no"), BodyTooLarge("no")):
        count.count(DIGITS, error, None, "q")

    assert count.drain() == []


def test_what_was_never_sent_has_no_replica(count: FailureCount) -> None:
    """The failure of a call that was never sent names no replica."""
    count.count(DIGITS, ReplicaDied("no"), call(), "q")

    assert count.drain()[0].replica == ""


def test_counting_is_bounded(count: FailureCount, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of entries and the length of a detail are bounded; invalid text is replaced."""
    monkeypatch.setattr(errors, "PENDING_MAX", 1)
    count.count(DIGITS, FnError("\ud800" + "x" * 10_000), None, "q")
    count.count(DIGITS, Poison("another"), None, "q")
    count.count(DIGITS, FnError("x"), None, "q")

    [taken] = count.drain()
    assert (taken.detail, taken.count) == ("?" + "x" * (DETAIL_MAX - 1), 2)


def test_the_newest_failures_come_first() -> None:
    """Failures are listed newest first, whatever the order of reports."""
    recent = RecentFailures()
    recent.add([failure(1.0, code="a"), failure(3.0, code="b")])
    recent.add([failure(2.0, code="c")])

    assert [one.code for one in recent.of("default", "digits")] == ["b", "c", "a"]
    assert recent.of("default", "other") == []


def test_equal_errors_of_several_processes_are_one_entry() -> None:
    """Equal failures within a second are one entry; what subscribers received does not change
    afterwards."""
    recent, told = RecentFailures(), list[list[Failure]]()
    undo = recent.subscribe(told.append)
    recent.add([failure(1.0)])
    recent.add([failure(1.5), failure(2.5)])

    assert [(one.at_s, one.count) for one in recent.of("default", "digits")] == [(2.5, 1), (1.0, 2)]
    undo()
    recent.add([failure(9.0)])
    assert [[one.count for one in several] for several in told] == [[1], [1, 1]]


def test_a_clock_set_back_hides_no_failure() -> None:
    """A failure with an earlier time is an entry of its own, not part of the later one."""
    recent = RecentFailures()
    recent.add([failure(5000.0)])
    recent.add([failure(1000.0)])

    assert [(one.at_s, one.count) for one in recent.of("default", "digits")] == [
        (5000.0, 1),
        (1000.0, 1),
    ]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failures kept per function and the number of functions are bounded; the latest stay."""
    monkeypatch.setattr(errors, "FUNCTIONS_MAX", 2)
    recent = RecentFailures()
    recent.add(failure(10.0 * number) for number in range(KEPT_MAX + 5))
    recent.add([failure(name="b"), failure(2000.0), failure(name="c")])

    assert len(recent.of("default", "digits")) == KEPT_MAX
    assert recent.of("default", "b") == []
    assert len(recent.of("default", "c")) == 1


def test_a_removed_function_is_forgotten() -> None:
    """A new function of the same name starts without failures; a second `forget` has no effect."""
    recent = RecentFailures()
    recent.add([failure()])

    recent.forget("default", "digits")
    recent.forget("default", "digits")

    assert recent.of("default", "digits") == []


def test_a_failing_subscriber_affects_no_other() -> None:
    """A subscriber's exception does not reach the others; an empty report notifies no
    subscriber."""
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
