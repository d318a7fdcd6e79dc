"""What a reflector does next, without a network."""

from __future__ import annotations

import pytest

from hosts.kubernetes.list_watch import (
    AWAY_S,
    BACK_OFF_MAX_S,
    RESYNC_S,
    STEADY_S,
    ListWatch,
    Notice,
    Step,
)


class Driven:
    """A state with a clock; chance is always 1."""

    def __init__(self) -> None:
        self.state = ListWatch(lambda: 1.0)
        self.now_s = 100.0

    def begin(self) -> Step:
        """Begin the next step, after its wait."""
        step = self.state.next()
        self.now_s += step.wait_s
        self.state.begun(self.now_s)
        return step

    def listed(self, version: str = "5") -> Notice | None:
        """Have the next step be a list that is answered."""
        assert self.begin().version == ""
        return self.state.listed(version)

    def watched(self, lasts_s: float) -> Notice | None:
        """Have the next step be a watch that is accepted and ends."""
        assert self.begin().version
        notice = self.state.opened()
        self.now_s += lasts_s
        self.state.ended(self.now_s)
        return notice

    def fail(self, after_s: float = 0.0) -> Notice | None:
        """Have the next step fail."""
        self.begin()
        self.now_s += after_s
        return self.state.failed(self.now_s)


@pytest.fixture
def driven() -> Driven:
    """Return a new one."""
    return Driven()


def test_a_list_comes_first_then_a_watch_at_once(driven: Driven) -> None:
    """The watch begins at the version of the list."""
    assert driven.state.next() == Step(0.0, "")
    assert driven.listed("5") is None
    assert driven.state.next() == Step(0.0, "5")


def test_a_watch_goes_on_where_it_ended(driven: Driven) -> None:
    """At the version of its last event or bookmark; one without a version changes nothing."""
    driven.listed("5")
    driven.begin()
    driven.state.opened()
    driven.state.advanced("7")
    driven.state.advanced("")
    driven.state.ended(driven.now_s + STEADY_S)

    assert driven.state.next() == Step(0.0, "7")


def test_short_watches_wait_longer_and_longer(driven: Driven) -> None:
    """One that the API server ends at once is as good as a refusal, until one has stood."""
    driven.listed()
    waits = []
    for _ in range(9):
        driven.watched(0.0)
        waits.append(driven.state.next().wait_s)

    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, BACK_OFF_MAX_S, BACK_OFF_MAX_S, BACK_OFF_MAX_S]
    driven.watched(STEADY_S)
    assert driven.state.next().wait_s == 0.0
    driven.watched(0.0)
    assert driven.state.next().wait_s == 0.5


def test_an_outdated_version_leads_to_a_list(driven: Driven) -> None:
    """If every watch is outdated, lists wait longer and longer; the watch after each does not."""
    driven.listed()
    waits = []
    for _ in range(3):
        assert driven.begin() == Step(0.0, "5")
        driven.state.outdated()
        driven.state.failed(driven.now_s)
        waits.append(driven.state.next().wait_s)
        driven.listed()

    assert waits == [0.5, 1.0, 2.0]


def test_one_failure_is_not_away(driven: Driven) -> None:
    """Two in a row are, which is said once; the next answer is back."""
    assert driven.fail() is None
    assert driven.fail() is Notice.AWAY
    assert driven.state.is_away
    assert driven.fail() is None
    assert driven.listed() is Notice.BACK
    assert not driven.state.is_away
    assert driven.watched(STEADY_S) is None


def test_a_failed_watch_keeps_its_version(driven: Driven) -> None:
    """Nothing is missed by it: the watch is tried again, and is back by itself."""
    driven.listed("5")
    assert driven.fail() is None
    assert driven.fail() is Notice.AWAY
    assert driven.watched(0.0) is Notice.BACK


def test_a_slow_failure_is_away_at_once(driven: Driven) -> None:
    """A time limit has passed: no need for a second one."""
    assert driven.fail(AWAY_S) is Notice.AWAY


def test_the_break_of_a_watch_is_no_failure(driven: Driven) -> None:
    """Nor are many of them: the API server accepted each."""
    driven.listed()
    for _ in range(5):
        driven.begin()
        driven.state.opened()
        assert driven.state.failed(driven.now_s + AWAY_S) is None
    assert not driven.state.is_away
    assert driven.fail() is None


def test_waits_depend_on_chance() -> None:
    """Half of each wait is certain."""
    state = ListWatch(lambda: 0.0)
    state.begun(0.0)
    state.failed(0.0)

    assert state.next().wait_s == 0.25


def test_resyncs_have_a_distance(driven: Driven) -> None:
    """The list that somebody asked for does not wait for anything else."""
    assert driven.state.resync_s(driven.now_s) == driven.now_s
    driven.listed()
    begun_s = driven.now_s
    driven.begin()
    driven.state.opened()

    assert driven.state.resync_s(begun_s + 1.0) == begun_s + RESYNC_S
    assert driven.state.resync_s(begun_s + 60.0) == begun_s + 60.0
    driven.state.interrupted()
    assert driven.state.next() == Step(0.0, "")
