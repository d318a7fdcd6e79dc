"""When golden samples are asked, and what counts as wrong."""

from __future__ import annotations

from pool_manager.core.health.sampling import AT_ONCE, Checked, Idle, SampleSchedule
from runtime_image.contract.samples import SampleVerdict

NONE, RIGHT = SampleVerdict.NONE, SampleVerdict.RIGHT
WRONG, NO_ANSWER = SampleVerdict.WRONG, SampleVerdict.NO_ANSWER
A = Idle("a", ready_s=100.0, every_s=60.0)
B = Idle("b", ready_s=90.0, every_s=60.0)


def due(schedule: SampleSchedule, *idle: Idle, now: float) -> list[str]:
    """Return who is asked; all idle replicas are present."""
    return schedule.due(idle, {one.id for one in idle}, now)


def test_a_replica_is_asked_at_intervals_from_when_it_is_ready() -> None:
    """Once at a time, and the next interval begins with the answer."""
    schedule = SampleSchedule()

    assert due(schedule, A, now=159.0) == []
    assert due(schedule, A, now=160.0) == ["a"]
    assert due(schedule, A, now=300.0) == []
    assert schedule.answered("a", RIGHT, 310.0) == Checked(RIGHT, NONE)
    assert due(schedule, A, now=369.0) == []
    assert due(schedule, A, now=370.0) == ["a"]


def test_a_wrong_answer_is_confirmed_at_once() -> None:
    """Only the second one counts; it is asked again like any other then."""
    schedule = SampleSchedule()
    due(schedule, A, now=200.0)

    assert schedule.answered("a", WRONG, 201.0) is None
    assert schedule.verdict("a") is NONE
    assert due(schedule, A, now=201.0) == ["a"]
    assert schedule.answered("a", WRONG, 202.0) == Checked(WRONG, NONE)
    assert schedule.verdict("a") is WRONG
    assert due(schedule, A, now=261.0) == []
    assert due(schedule, A, now=262.0) == ["a"]
    assert schedule.answered("a", RIGHT, 263.0) == Checked(RIGHT, WRONG)


def test_a_wrong_answer_that_is_not_confirmed_is_right() -> None:
    """Or whatever the second ask shows."""
    schedule = SampleSchedule()
    due(schedule, A, now=200.0)
    schedule.answered("a", WRONG, 201.0)
    due(schedule, A, now=201.0)

    assert schedule.answered("a", RIGHT, 202.0) == Checked(RIGHT, NONE)


def test_no_verdict_changes_nothing() -> None:
    """What was known stays known."""
    schedule = SampleSchedule()
    due(schedule, A, now=200.0)
    schedule.answered("a", NO_ANSWER, 201.0)
    due(schedule, A, now=300.0)

    assert schedule.answered("a", NONE, 301.0) == Checked(NONE, NO_ANSWER)
    assert schedule.verdict("a") is NO_ANSWER


def test_doubted_replicas_come_first_then_the_most_overdue() -> None:
    """At most AT_ONCE are asked at once."""
    schedule = SampleSchedule()
    due(schedule, A, now=200.0)
    schedule.answered("a", WRONG, 201.0)
    others = [Idle(f"c{i}", ready_s=float(i), every_s=60.0) for i in range(AT_ONCE)]

    first = due(schedule, B, *others, A, now=202.0)
    assert first == ["a", "c0", "c1", "c2"]
    assert due(schedule, B, *others, A, now=203.0) == []
    schedule.answered("c0", RIGHT, 204.0)
    assert due(schedule, B, *others, A, now=204.0) == ["c3"]


def test_a_replica_that_is_gone_is_forgotten() -> None:
    """A late answer of it counts nowhere, and its place is free."""
    schedule = SampleSchedule()
    due(schedule, A, now=200.0)
    due(schedule, B, now=200.0)

    assert schedule.answered("a", WRONG, 201.0) is None
    assert schedule.verdict("a") is NONE
