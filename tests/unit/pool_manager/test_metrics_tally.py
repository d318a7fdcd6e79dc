"""Tests of what becomes of replicas, over the real machine."""

from __future__ import annotations

from structlog.testing import capture_logs

from pool_manager.core import commands, events
from pool_manager.core.eviction import MAKES_ROOM
from pool_manager.core.state import RELEASE_RETRY_S, START_S, PoolSpec
from pool_manager.metrics import COLD_STARTS, EVICTIONS, KINDS, OUTCOMES, WHEN, ReplicaCounter
from tests.support.play import Play

A, B = PoolSpec("default/a@1", idle_s=60.0), PoolSpec("default/b@1", idle_s=60.0)


class Told(Play):
    """A machine whose events and commands a tally hears."""

    def __init__(self, *specs: PoolSpec, devices: int = 1, standbys: int = 0) -> None:
        self.tally = ReplicaCounter()
        super().__init__(*specs, devices=devices, standbys=standbys)
        handle = self.machine.handle

        def told(event: events.Event, now: float) -> list[commands.Command]:
            done = handle(event, now)
            for about in (event, *done):
                self.tally.note(about)
            return done

        self.machine.handle = told  # type: ignore[method-assign]

    @property
    def starts(self) -> dict[tuple[str, str], int]:
        return dict(self.tally.counts.starts)

    @property
    def failures(self) -> dict[tuple[str, str], int]:
        return dict(self.tally.counts.failures)


def test_a_start_is_counted_when_it_has_ended() -> None:
    """A start is counted as ready when loaded, its cold start after the first run."""
    play = Told(A)
    play.demand(a=1)
    assert play.starts == {}
    play.ready("r1")
    play.on(events.FirstRun("r1", 3.0))

    assert play.starts == {("process", "ready"): 1}
    assert play.tally.counts.cold_starts == {"ready": 1}
    assert play.failures == {}


def test_a_standby_starts_ahead_and_then_with_a_model() -> None:
    """A standby counts as two starts: one without and one with a model."""
    play = Told(A, standbys=1)
    play.demand()
    play.tick(2.0)
    play.tick(2.0)
    play.on(events.Greeted("r1", {}))
    play.demand(a=1)
    play.on(events.Loaded("r1", 4, True, 80.0, {"load": 1.0}))

    assert play.starts == {("ahead", "ready"): 1, ("standby", "ready"): 1}


def test_a_start_that_fails_has_a_reason() -> None:
    """A start that fails is counted with its reason, and its cold start as failed."""
    play = Told(A)
    play.demand(a=1)
    play.on(events.Lost("r1", "not a model", stage="load"))

    assert play.starts == {("process", "failed"): 1}
    assert play.failures == {("starting", "load"): 1}
    assert play.tally.counts.cold_starts == {"failed": 1}


def test_a_start_that_takes_too_long_hangs() -> None:
    """A start above its time limit is counted as a hang."""
    play = Told(A)
    play.demand(a=1)
    play.on(events.Begun("r1"))
    play.tick(START_S)

    assert play.starts == {("process", "failed"): 1}
    assert play.failures == {("starting", "hang"): 1}


def test_a_start_that_is_not_wanted_any_more_is_dropped() -> None:
    """A start that is no longer needed is counted as dropped, not as failed."""
    play = Told(A)
    play.demand(a=1)
    play.on(events.PoolRemoved(A.key))

    assert play.starts == {("process", "dropped"): 1}
    assert play.failures == {}


def test_what_an_engine_refuses_is_no_failure() -> None:
    """A refused start is counted as such, an eviction as one of the engine's, once each."""
    play = Told(A, devices=2)
    play.demand(a=1)
    play.on(events.Lost("r1", "full", is_its_fault=False, refused_s=30.0))
    taken = events.Lost("r2", "preempted", is_its_fault=False, refused_s=30.0, is_eviction=True)
    play.ready("r2")
    for _ in range(2):
        play.on(taken)

    assert play.starts == {("process", "refused"): 1, ("process", "ready"): 1}
    assert play.tally.counts.evictions == {"engine": 1}
    assert play.failures == {}


def test_a_death_while_serving_is_a_failure() -> None:
    """A death while serving is logged and counted once, and its memory as freed."""
    play = Told(A)
    play.warm(a="r1")
    with capture_logs() as logs:
        play.on(events.Lost("r1", "was killed by SIGKILL"))
        play.on(events.Lost("r1", "control link lost: closed by the other side"))
    died = {"event": "a replica died", "log_level": "warning", "replica": "r1", "pool": A.key}
    assert logs == [{**died, "reason": "was killed by SIGKILL"}]
    device = play.replica("r1").first_device
    assert play.tally.counts.reclaimed_mib == {}
    play.on(events.Released("r1"))

    assert play.failures == {("serving", "killed"): 1}
    assert play.tally.counts.reclaimed_mib == {device: 80.0}


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    """A requested end is no failure; a replica that refuses and dies later has failed."""
    play = Told(A)
    play.warm(a="r1")
    assert play.tick(60.0) != []
    with capture_logs() as logs:
        play.on(events.Lost("r1", "exited with code 0"))
    assert logs == []
    assert play.failures == {}
    play.on(events.Released("r1"))
    play.warm(a="r2")
    play.tick(60.0)
    play.on(events.NotIdle("r2", 0.5))
    play.lose("r2", "was killed by SIGSEGV")

    assert play.failures == {("serving", "killed"): 1}


def test_a_soft_swap_counts_when_the_server_goes() -> None:
    """A server that made room counts as a busy eviction and not as a failure; one that was called
    back does not count."""
    counter = ReplicaCounter()
    counter.note(commands.Launch("r1", A.key, ("d0",), "serve", {}))
    counter.note(commands.Quiesce("r1"))
    counter.note(commands.Resume("r1"))
    counter.note(events.NotIdle("r1", 0.0))
    assert counter.counts.evictions == {}
    counter.note(commands.Quiesce("r1"))
    counter.note(events.Lost("r1", "exited with code 0"))
    counter.note(commands.Release("r1", f"{MAKES_ROOM} for {B.key}"))

    assert counter.counts.evictions == {"busy": 1}
    assert not counter.counts.failures


def test_an_eviction_counts_when_the_victim_goes() -> None:
    """An eviction is counted when the victim is released, not if it refuses."""
    play = Told(A, B)
    play.warm(a="r1")
    play.demand(1.0, b=1)
    play.on(events.NotIdle("r1", 0.0))
    assert play.tally.counts.evictions == {}
    play.demand(1.0, b=1)
    play.lose("r1", "exited with code 0")

    assert play.tally.counts.evictions == {"idle": 1}


def test_a_release_that_is_tried_again_counts_once() -> None:
    """A release that is retried counts once."""
    play = Told(A)
    play.warm(a="r1")
    play.on(events.Lost("r1", "was killed by SIGKILL"))
    play.on(events.NotReleased("r1", "still there"))
    play.tick(RELEASE_RETRY_S)
    play.on(events.Released("r1"))

    assert play.failures == {("serving", "killed"): 1}
    assert len(play.tally.counts.reclaimed_mib) == 1


def test_adopted_replicas_did_not_start_here() -> None:
    """Adopted replicas count no starts, but their memory is counted as freed."""
    play = Told(A)
    play.on(events.Found("old", A.key, ("d0",)))
    play.on(events.Greeted("old", {}, loaded=True))
    play.on(events.Loaded("old", 4, True, 70.0, {}))
    assert play.starts == {}
    play.lose("old", "was killed by SIGKILL")

    assert play.failures == {("serving", "killed"): 1}
    assert play.tally.counts.reclaimed_mib == {"d0": 70.0}


def test_nothing_is_remembered_of_what_is_gone() -> None:
    """Released replicas leave no state, and unknown ids are ignored."""
    play = Told(A)
    play.warm(a="r1")
    play.lose("r1")
    play.on(events.Lost("r1", "again"))
    play.on(events.Released("never"))

    assert play.tally._replicas == {}


def test_a_copy_grows_no_more() -> None:
    """A copy of the counts does not change later."""
    play = Told(A)
    copy = play.tally.counts.copy()
    play.warm(a="r1")

    assert (copy.starts, play.starts) == ({}, {("process", "ready"): 1})


def test_whatever_is_counted_has_a_label() -> None:
    """All label values are exported from the start."""
    play = Told(A, B)
    play.warm(a="r1")
    play.demand(1.0, b=1)
    play.lose("r1", "exited with code 0")
    play.ready("r2")
    play.on(events.FirstRun("r2", 1.0))
    play.lose("r2", "odd")
    counts = play.tally.counts

    assert all(kind in KINDS and outcome in OUTCOMES for kind, outcome in counts.starts)
    assert all(when in WHEN for when, _ in counts.failures)
    assert set(counts.evictions) <= set(EVICTIONS)
    assert set(counts.cold_starts) <= set(COLD_STARTS)


def test_memory_is_freed_on_each_device() -> None:
    """What a replica on several devices gives back counts on each of them."""
    counter = ReplicaCounter()
    counter.note(events.Found("r1", A.key, ("g1", "g2")))
    counter.note(events.Loaded("r1", 1, True, 80.0, {}))
    counter.note(events.Released("r1"))

    assert counter.counts.reclaimed_mib == {"g1": 80.0, "g2": 80.0}
