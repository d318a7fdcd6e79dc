"""The order in which waiting requests are served."""

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
    """Who came first is served first."""
    calls = [call() for _ in range(30)]
    line = filled(*calls)

    assert [line.pop() for _ in calls] == calls


@pytest.mark.parametrize("start", range(12))
def test_three_priorities_are_served_8_3_1(start: int) -> None:
    """While all three wait, any twelve served in a row are eight, three and one."""
    line = filled(*(call(priority) for priority in Priority for _ in range(30)))
    for _ in range(start):
        line.pop()

    assert Counter(line.pop().priority for _ in range(12)) == {HIGH: 8, NORMAL: 3, LOW: 1}


def test_turns_of_nobody_are_skipped() -> None:
    """A priority that waits alone is served without gaps, to the last."""
    line = filled(call(LOW), call(LOW))

    assert [line.pop().priority, line.pop().priority] == [LOW, LOW]
    with pytest.raises(IndexError, match="the queue is empty"):
        line.pop()


def test_who_comes_back_takes_the_old_place() -> None:
    """Calls handed back stand in order of arrival again, before those never sent."""
    calls = [call() for _ in range(6)]
    line = filled(*calls)
    sent = [line.pop() for _ in range(4)]

    for each in (sent[2], sent[0], sent[3], sent[1]):
        line.reinsert(each)

    assert list(line) == calls


def test_a_call_may_leave_from_anywhere() -> None:
    """The others keep their order; who does not wait cannot leave."""
    first, second, third = call(), call(LOW), call()
    line = filled(first, second, third)

    line.remove(first)

    assert [third, second] == list(line)
    with pytest.raises(ValueError, match="not in deque"):
        line.remove(first)


def test_all_may_leave_at_once() -> None:
    """Everybody is returned and nobody waits."""
    calls = [call(HIGH), call(LOW)]
    line = filled(*calls)

    assert line.clear() == calls
    assert len(line) == 0


def test_the_oldest_may_have_any_priority() -> None:
    """The longest wait is looked for in all lines; nobody has waited since for ever."""
    assert filled(call(HIGH, 7.0), call(LOW, 3.0)).oldest_s() == 3.0
    assert CallQueue().oldest_s() == float("inf")


def test_calls_of_another_line_take_their_places() -> None:
    """Places are numbered over all lines; who is gone cannot leave again."""
    one, other = CallQueue(), CallQueue()
    calls = [call() for _ in range(4)]
    for place, each in enumerate(calls):
        each.position = place
        (one, other)[place % 2].append(each)

    leaving = list(one)
    one.remove_all([*leaving, call()])
    other.merge(leaving)

    assert (list(one), list(other)) == ([], calls)
