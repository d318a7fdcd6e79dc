"""Tests of the order in which messages are read, and of the reads that are ended for others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.grpc.read_queue import WAIT_S, WAITING_MAX, ReadQueue
from registry.errors import QueueFull

PATIENCE_S = 2.0


@dataclass(eq=False)
class OneRead:
    """A read without its room."""

    party: str
    since_s: float
    within_s: float = 30.0


def queue_of(reading: str, waiting: str) -> ReadQueue[OneRead]:
    """Return a queue with reads of parties, one letter each, that began a second apart from 0 on:
    first those that have room, then those that wait."""
    queue: ReadQueue[OneRead] = ReadQueue(PATIENCE_S)
    for at, party in enumerate(reading):
        queue.begin(OneRead(party, 0.0), float(at))
    for at, party in enumerate(waiting, len(reading)):
        queue.wait(OneRead(party, float(at)))
    return queue


@pytest.mark.parametrize(
    ("reading", "waiting", "order"),
    [
        pytest.param("", "", "", id="nobody waits"),
        pytest.param("", "aab", "aba", id="parties take turns"),
        pytest.param("", "abc", "abc", id="equal parties in the order of their waits"),
        pytest.param("aab", "abc", "cba", id="the party with least room is first"),
        pytest.param("aaa", "aaabbb", "bbbaaa", id="until it has as much as others"),
    ],
)
def test_room_goes_to_the_party_that_has_least(reading: str, waiting: str, order: str) -> None:
    """Of one party the longest wait is first."""
    queue, got = queue_of(reading, waiting), ""
    while (read := queue.first()) is not None:
        queue.forget(read)
        queue.begin(read, 100.0)
        got += read.party
    assert got == order
    assert not queue


@pytest.mark.parametrize(
    ("reading", "now", "slowest"),
    [
        pytest.param("", 9.0, None, id="none has room"),
        pytest.param("ab", 1.9, None, id="all are young"),
        pytest.param("ab", 2.0, ("a", 0.0), id="the oldest"),
        pytest.param("abb", 4.0, ("b", 1.0), id="of the party with most room"),
        pytest.param("abb", 2.5, ("a", 0.0), id="if it is old"),
    ],
)
def test_the_read_to_end_is_old_and_of_the_party_with_most_room(
    reading: str, now: float, slowest: tuple[str, float] | None
) -> None:
    """A read that is younger than a wait may be is quick: its room comes back by itself."""
    found = queue_of(reading, "").slowest(now)
    assert (None if found is None else (found.party, found.since_s)) == slowest


@pytest.mark.parametrize(
    ("waiting", "now", "is_impatient", "overdue"),
    [
        pytest.param("", 99.0, False, 0, id="nobody waits"),
        pytest.param("ab", 1.9, False, 0, id="a short wait"),
        pytest.param("ab", 2.0, True, 0, id="a wait for which another read is ended"),
        pytest.param("aab", WAIT_S + 1.0, True, 2, id="waits that are refused"),
    ],
)
def test_waits_are_bounded(waiting: str, now: float, is_impatient: bool, overdue: int) -> None:
    """The longest wait decides."""
    queue = queue_of("", waiting)
    assert queue.is_impatient(now) is is_impatient
    assert len(queue.overdue(now)) == overdue


def test_one_party_leaves_half_of_the_queue_to_others() -> None:
    """A read that waits no more makes room in the queue."""
    queue: ReadQueue[OneRead] = ReadQueue(PATIENCE_S)
    waiting = [OneRead("a", 0.0) for _ in range(WAITING_MAX // 2)]
    for one in waiting:
        queue.wait(one)
    with pytest.raises(QueueFull, match="messages wait"):
        queue.wait(OneRead("a", 0.0))
    queue.wait(OneRead("b", 0.0))
    for _ in range(2):
        queue.forget(waiting[0])
    queue.wait(OneRead("a", 0.0))


def test_room_that_was_given_back_no_longer_counts() -> None:
    """The next room is for the party that has least now."""
    queue = queue_of("", "ab")
    read = OneRead("a", 0.0)
    queue.begin(read, 0.0)
    assert queue.has_room
    assert (queue.first() or read).party == "b"
    queue.end(read)
    assert not queue.has_room
    assert (queue.first() or read).party == "a"


def test_a_read_has_its_time_from_when_it_has_room() -> None:
    """Waits do not count."""
    queue = queue_of("ab", "c")
    assert queue.late(29.9) == []
    assert [one.party for one in queue.late(30.0)] == ["a"]
    assert [one.party for one in queue.late(99.0)] == ["a", "b"]
