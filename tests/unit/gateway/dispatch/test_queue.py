"""Tests of the order in which queued calls are served."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.dispatch.call import Call, Priority
from gateway.dispatch.queue import CallQueue
from runtime_image.link.meta import RequestMeta

META = RequestMeta("application/json", "", -1, "")
HIGH, NORMAL, LOW = Priority


def call(priority: Priority = NORMAL, arrived_s: float = 0.0) -> Call:
    return Call("default/a@1", META, b"", arrived_s, 55.0, 60.0, priority)


def filled(*calls: Call) -> CallQueue:
    line = CallQueue()
    for place, each in enumerate(calls):
        each.position = place
        line.append(each)
    return line


def test_one_priority_is_served_in_order_of_arrival() -> None:
    """Within one priority calls are served first in, first out."""
    calls = [call() for _ in range(30)]
    line = filled(*calls)

    assert [line.pop() for _ in calls] == calls


@pytest.mark.parametrize("start", range(12))
def test_three_priorities_are_served_8_3_1(start: int) -> None:
    """While all three are queued, any twelve calls in a row are eight high, three normal, one
    low."""
    line = filled(*(call(priority) for priority in Priority for _ in range(30)))
    for _ in range(start):
        line.pop()

    assert Counter(line.pop().priority for _ in range(12)) == {HIGH: 8, NORMAL: 3, LOW: 1}


def test_turns_of_empty_priorities_are_skipped() -> None:
    """A single queued priority is served without gaps."""
    line = filled(call(LOW), call(LOW))

    assert [line.pop().priority, line.pop().priority] == [LOW, LOW]
    with pytest.raises(IndexError, match="the queue is empty"):
        line.pop()


def test_returned_calls_keep_their_position() -> None:
    """Returned calls keep their order of arrival, before calls never sent."""
    calls = [call() for _ in range(6)]
    line = filled(*calls)
    sent = [line.pop() for _ in range(4)]

    for each in (sent[2], sent[0], sent[3], sent[1]):
        line.reinsert(each)

    assert list(line) == calls


def test_a_call_can_be_removed_from_any_position() -> None:
    """The other calls keep their order; removing an absent call raises."""
    first, second, third = call(), call(LOW), call()
    line = filled(first, second, third)

    line.remove(first)

    assert [third, second] == list(line)
    with pytest.raises(ValueError, match="not in deque"):
        line.remove(first)


def test_clear_returns_all_calls() -> None:
    """`clear` returns all calls and leaves the queue empty."""
    calls = [call(HIGH), call(LOW)]
    line = filled(*calls)

    assert line.clear() == calls
    assert len(line) == 0


def test_the_oldest_may_have_any_priority() -> None:
    """The longest wait is taken over all priorities; an empty queue returns infinity."""
    assert filled(call(HIGH, 7.0), call(LOW, 3.0)).oldest_s() == 3.0
    assert CallQueue().oldest_s() == float("inf")


def test_merged_calls_keep_their_positions() -> None:
    """Positions are numbered over all queues; removing absent calls has no effect."""
    one, other = CallQueue(), CallQueue()
    calls = [call() for _ in range(4)]
    for place, each in enumerate(calls):
        each.position = place
        (one, other)[place % 2].append(each)

    leaving = list(one)
    one.remove_all([*leaving, call()])
    other.merge(leaving)

    assert (list(one), list(other)) == ([], calls)
