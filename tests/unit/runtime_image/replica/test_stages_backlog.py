"""What is ready for the worker thread."""

from __future__ import annotations

from runtime_image.link.meta import RequestMeta
from runtime_image.replica.intake import Job
from runtime_image.replica.stages import Backlog, Entry


def job(id: int, alone: bool = False) -> Job:
    return Job(1, id, RequestMeta("", "", -1, ""), b"", 60.0, 0.0, alone)


def filled(*jobs: Job) -> Backlog:
    backlog = Backlog()
    backlog.add(map(Entry, jobs))
    return backlog


def ids(entries: list[Entry]) -> list[int]:
    return [entry.job.id for entry in entries]


def test_entries_are_taken_in_order() -> None:
    """At most so many at once, and one that must be alone comes alone."""
    backlog = filled(job(1), job(2), job(3), job(4, alone=True), job(5))

    assert [ids(backlog.take(2)) for _ in range(5)] == [[1, 2], [3], [4], [5], []]


def test_the_worker_is_woken_once() -> None:
    """Whoever adds something while it is at work need not wake it, for it looks again; it is no
    longer at work once it found nothing, or was told to take nothing."""
    backlog = filled()
    assert backlog.begin(9) == []

    backlog.add([Entry(job(1)), Entry(job(2))])
    woken = [ids(backlog.begin(1)), ids(backlog.begin(1))]
    backlog.add([Entry(job(3))])
    taken = ids(backlog.take(1))
    backlog.take(0)

    assert woken == [[1], []]
    assert taken == [2]
    assert ids(backlog.begin(9)) == [3]


def test_a_job_can_be_withdrawn_until_it_is_taken() -> None:
    """What the worker has got stays with it."""
    one, two = job(1), job(2)
    backlog = filled(one, two)
    backlog.take(1)

    assert not backlog.withdraw(one)
    assert backlog.withdraw(two)
    assert backlog.first is None


def test_all_that_waits_can_be_had_back() -> None:
    """The first of them was next; what the gateway was told of stays."""
    one, two, told = job(1), job(2), job(3)
    backlog = filled(one, two)
    backlog.add([Entry(told, is_marked=True)])

    assert backlog.first is one
    assert backlog.clear() == [one, two]
    assert ids(backlog.take(2)) == [3]
