"""Starts that fetch their files: what is told of them, and how long they may take."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.pool import forecast
from pool_manager.core.starts import FETCH_STALL_S, Fetching
from pool_manager.core.state import PoolSpec, State, load_limit_s
from runtime_image.contract.enrolment import FETCH_PATIENCE_S
from tests.support.play import Play

MB = 10**6
SPEC = PoolSpec("default/a@1", load_s=2.0)


def loading() -> Play:
    """A start that loads, for a call that waits."""
    play = Play(SPEC)
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    assert play.state("r1") is State.LOADING
    return play


def fetched(done_mb: float, seconds: float) -> events.FetchReported:
    """Report a fetch of 100 MB."""
    return events.FetchReported("r1", int(done_mb * MB), 100 * MB, seconds)


def test_a_fetch_is_told_with_its_speed_and_what_is_left() -> None:
    """Then comes the load, as long as in the trial."""
    play = loading()
    play.on(fetched(40, 0.8))

    shown = forecast(play.pool("a"), 1, play.now)
    assert play.reason("a") == "fetches 40 of 100 MB, 50 MB/s"
    assert shown.phase == "fetch"
    assert shown.eta_s == pytest.approx(1.2 + 2.0)
    assert shown.awaited is not None
    assert (shown.awaited.what, shown.awaited.seconds) == ("fetches", 0.8)


def test_before_the_first_byte_nothing_is_known_of_the_rest() -> None:
    """Nor without calls that wait."""
    play = loading()
    play.on(fetched(0, 1.0))

    assert play.reason("a") == "fetches 0 of 100 MB, 0 MB/s"
    assert forecast(play.pool("a"), 1, play.now).eta_s is None
    play.on(fetched(50, 1.0))
    assert forecast(play.pool("a"), 0, play.now).eta_s is None


def test_a_complete_fetch_is_over() -> None:
    """The phase is that of the load, and so it is for a replica that fetches nothing."""
    play = loading()
    assert forecast(play.pool("a"), 1, play.now).phase == "load"
    play.on(fetched(40, 0.8))
    play.on(fetched(100, 2.0))

    shown = forecast(play.pool("a"), 1, play.now)
    assert (shown.phase, shown.awaited, shown.eta_s) == ("load", None, None)


def test_a_replica_that_has_loaded_fetches_nothing() -> None:
    """A report that comes late changes nothing, nor does one of a replica that is gone."""
    play = loading()
    play.on(fetched(40, 0.8))
    play.ready("r1")
    assert play.replica("r1").fetching is None
    play.on(fetched(50, 1.0))
    assert play.replica("r1").fetching is None
    assert forecast(play.pool("a"), 1, play.now).eta_s is None
    assert play.on(events.FetchReported("r9", 1, 2, 1.0)) == []


def test_progress_begins_the_time_limit_anew() -> None:
    """A large model may take hours. A fetch that stands still, or all but, is ended, after its
    replica should have given up. A load that follows has the time of any other one."""
    play = loading()
    for done_mb in range(2, 90, 2):
        play.on(fetched(done_mb, 1.0), FETCH_STALL_S - 1)
    assert play.state("r1") is State.LOADING

    play.on(fetched(88.5, 1.0), FETCH_STALL_S - 1)
    play.tick(2.0)
    assert play.state("r1") is State.RELEASING


def test_a_fetch_that_waits_for_its_turn_is_left_to_its_replica() -> None:
    """Which gives up after FETCH_PATIENCE_S, and says why."""
    play = loading()
    play.on(fetched(0, 1.0), 1.0)
    play.tick(FETCH_PATIENCE_S)
    assert play.state("r1") is State.LOADING


def test_a_load_after_a_fetch_has_its_own_time_limit() -> None:
    """From the end of the fetch on."""
    play = loading()
    play.on(fetched(40, 0.8))
    play.on(fetched(100, 2.0))
    play.tick(load_limit_s(SPEC) - 1)
    assert play.state("r1") is State.LOADING
    play.tick(2.0)
    assert play.state("r1") is State.RELEASING


def test_of_a_host_that_is_away_no_time_limit_begins() -> None:
    """Its replicas have none until it is back."""
    play = loading()
    replica = play.replica("r1")
    replica.may_run = True
    record = play.machine.cluster.hosts[replica.host]
    record.can_be_lost = True
    play.on(events.HostUnreachable(replica.host, "gone"))
    play.on(fetched(40, 1.0))
    assert replica.deadline_s == float("inf")


def test_a_speed_is_finite() -> None:
    """Also in the first instant."""
    assert Fetching(MB, 2 * MB, 0.0).bytes_per_s == pytest.approx(1e9)
