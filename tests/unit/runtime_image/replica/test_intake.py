"""Admission of requests by a replica: accepted, owed and refused."""

from __future__ import annotations

import pytest

from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta
from runtime_image.replica.intake import Intake, Job

META = RequestMeta("application/json", "", -1, "")


def job(id: int, link: int = 1, *, alone: bool = False) -> Job:
    return Job(link, id, META, b"", timeout_s=60.0, arrived_s=0.0, alone=alone)


def test_the_limit_holds_over_all_links() -> None:
    """A request over the limit is refused, whichever link it arrives on."""
    intake = Intake(limit=2)

    said = [intake.accept(job(1, link)) for link in (1, 2, 3)]

    assert said == [None, None, NotStarted.FULL]


def test_an_id_is_used_once_at_a_time() -> None:
    """A second request with an id in use is an error, even with free places."""
    intake = Intake(limit=1)
    intake.accept(job(1))

    with pytest.raises(KeyError):
        intake.accept(job(1))
    assert intake.accept(job(1, link=2)) is NotStarted.FULL


def test_a_draining_replica_takes_nothing() -> None:
    """A request that arrives after GOAWAY is not started."""
    intake = Intake(limit=2, draining=True)

    assert intake.accept(job(1)) is NotStarted.DRAINING
    assert not intake.owed


def test_refused_links_are_notified_once() -> None:
    """Each freed place notifies one refused link, in order; the last notifies all that remain."""
    intake = Intake(limit=3)
    jobs = [job(1), job(2), job(3)]
    for one in jobs:
        intake.accept(one)
    for link in (2, 3, 4, 2):
        intake.accept(job(1, link))

    told = [intake.finish(one, 1.0) for one in jobs]

    assert told == [[2], [3, 4], []]


def test_jobs_come_in_order_and_in_number() -> None:
    """At most the requested number of jobs is returned, in order of arrival."""
    intake = Intake(limit=9)
    jobs = [job(id) for id in range(5)]
    for one in jobs:
        intake.accept(one)

    assert [intake.take(2), intake.take(9), intake.take(9)] == [jobs[:2], jobs[2:], []]


def test_alone_means_alone() -> None:
    """A request that must run alone joins neither earlier nor later requests."""
    intake = Intake(limit=9)
    jobs = [job(1), job(2, alone=True), job(3, alone=True), job(4)]
    for one in jobs:
        intake.accept(one)

    assert [intake.take(4) for _ in range(4)] == [[one] for one in jobs]


def test_only_owed_requests_can_be_cancelled() -> None:
    """Only an owed request can be cancelled."""
    intake = Intake(limit=2)
    wanted = job(1)
    intake.accept(wanted)

    assert intake.cancel(1, 1) is wanted
    assert wanted.cancelled
    assert intake.cancel(1, 2) is None


def test_handing_back_keeps_running_requests() -> None:
    """Only waiting requests are handed back."""
    intake = Intake(limit=3)
    jobs = [job(1), job(2), job(3)]
    for one in jobs:
        intake.accept(one)
    intake.take(1)

    assert intake.take_all() == jobs[1:]
    assert not intake.waiting
    assert len(intake.owed) == 3


def test_a_lost_link_is_forgotten() -> None:
    """A lost link's requests are cancelled and it gets no notice; other links are unaffected."""
    intake = Intake(limit=2)
    lost, kept = job(1, link=1), job(1, link=2)
    intake.accept(lost)
    intake.accept(kept)
    intake.accept(job(2, link=1))

    intake.lose_link(1)

    assert (lost.cancelled, kept.cancelled) == (True, False)
    assert intake.last_accepted == {2: 1}
    assert intake.finish(lost, 1.0) == []


def test_idle_counts_from_the_last_end() -> None:
    """Idle time counts from the last answer; it is zero while a request is owed."""
    intake = Intake(limit=2, last_end_s=10.0)
    one = job(1)

    fresh = intake.idle_s(12.0)
    intake.accept(one)
    busy = intake.idle_s(13.0)
    intake.finish(one, 14.0)

    assert (fresh, busy, intake.idle_s(14.5), intake.idle_s(13.0)) == (2.0, 0.0, 0.5, 0.0)


def test_an_idle_replica_has_notified_all_refused_links() -> None:
    """When nothing is owed any more, the last finish notifies all refused links."""
    intake = Intake(limit=1)
    first = job(1)
    intake.accept(first)
    for link in (2, 3, 4):
        intake.accept(job(1, link))

    assert intake.finish(first, 1.0) == [2, 3, 4]
