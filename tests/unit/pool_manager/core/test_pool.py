"""One pool: failures, and its published state."""

from __future__ import annotations

from math import exp, log

import pytest

from pool_manager.core.pool import UNKNOWN_RELOAD_S, CallRate, Pool, eviction_cost
from pool_manager.core.state import PoolSpec, Replica, State

KEY = "default/a@1"


def pool(*states: State, if_idle: bool = False) -> Pool:
    made = Pool(PoolSpec(KEY), wanted_reason="1 held")
    for number, state in enumerate(states):
        id = f"r{number}"
        made.replicas[id] = Replica(
            id, KEY, (f"cpu{number}",), "serve", 0.0, state, if_idle=if_idle, why="idle for 300 s"
        )
    return made


def test_failed_loads_back_off_up_to_a_minute() -> None:
    """After each failure in a row the next try is 1, 2, 4, ... 60 s later."""
    failing = Pool(PoolSpec(KEY))
    pauses = []
    for _ in range(9):
        failing.record_failure("no memory", ("last line",), 100.0)
        pauses.append(failing.retry_at_s - 100.0)

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failing_for_days_is_still_counted() -> None:
    """After very many failures the back-off is still a minute."""
    failing = Pool(PoolSpec(KEY), failures=5000)

    failing.record_failure("no memory", (), 0.0)

    assert failing.retry_at_s == 60.0


def test_five_failures_make_a_pool_failing() -> None:
    """A pool is failing from the fifth failure until its next try."""
    failing = Pool(PoolSpec(KEY))
    for _ in range(4):
        failing.record_failure("no memory", ("last line",), 0.0)
    assert not failing.is_failing(0.0)

    failing.record_failure("no memory", ("last line",), 0.0)

    assert failing.is_failing(15.9)
    assert failing.describe(0, 15.9) == ("failing", "no memory")
    assert failing.describe(0, 16.0) == ("cold", "no memory")


def test_a_lasting_failure_makes_a_pool_failing_at_once() -> None:
    """No further start could go better; one is tried after the back-off all the same."""
    failing = Pool(PoolSpec(KEY))

    failing.record_failure("no packages", (), 0.0, is_lasting=True)

    assert failing.describe(1, 15.9) == ("failing", "no packages")
    assert failing.describe(0, 16.0) == ("cold", "no packages")
    failing.record_failure("no packages", (), 16.0, is_lasting=True)
    assert failing.retry_at_s == 48.0


def test_a_success_forgives_the_past() -> None:
    """A successful load resets all failures."""
    forgiven = Pool(PoolSpec(KEY))
    forgiven.record_failure("no memory", ("last line",), 0.0)

    forgiven.forget_failures()

    fresh = Pool(PoolSpec(KEY), scaler=forgiven.scaler)
    assert fresh == forgiven


@pytest.mark.parametrize(
    ("states", "held", "expected"),
    [
        ((), 0, ("cold", "no calls")),
        ((), 1, ("waking", "1 held")),
        ((State.STARTING,), 0, ("waking", "1 held")),
        ((State.STANDBY,), 1, ("waking", "1 held")),
        ((State.RELEASING, State.LOADING), 1, ("waking", "1 held")),
        ((State.LOADING, State.READY), 1, ("warm", "1 held")),
        ((State.DRAINING,), 0, ("draining", "idle for 300 s")),
        ((State.RELEASING,), 0, ("draining", "idle for 300 s")),
        ((State.RELEASING,), 1, ("waking", "1 held")),
    ],
)
def test_how_a_pool_looks(states: tuple[State, ...], held: int, expected: tuple[str, str]) -> None:
    """The best replica's state decides; without one, whether calls wait."""
    assert expected == pool(*states).describe(held, 0.0)


def test_what_keeps_a_waking_pool_is_said_first() -> None:
    """The reason of a waking pool is the obstacle, else the last failure, else why it is wanted."""
    waking = pool()
    waking.last_error = "no memory"
    assert waking.describe(1, 0.0) == ("waking", "no memory")

    waking.blocked = "no free device (2 in use)"
    assert waking.describe(1, 0.0) == ("waking", "no free device (2 in use)")


def test_a_replica_that_may_refuse_to_go_counts_until_it_goes() -> None:
    """A replica with a conditional drain still serves and counts, but not as staying."""
    asked = pool(State.DRAINING, if_idle=True)

    assert asked.count() == 1
    assert asked.staying() == 0
    assert asked.is_warm


def test_one_told_to_go_is_gone() -> None:
    """A replica with an unconditional drain neither counts nor serves."""
    told = pool(State.DRAINING, State.LOADING)

    assert told.count() == 1
    assert told.staying() == 1
    assert not told.is_warm


def test_a_pause_blames_nobody() -> None:
    """After a loss without fault the next try is a second later; a longer back-off is kept."""
    paused = Pool(PoolSpec(KEY))

    paused.delay_retry("the engine restarted", 100.0)

    assert (paused.failures, paused.retry_at_s) == (0, 101.0)
    assert paused.last_error == "the engine restarted"
    paused.retry_at_s = 150.0
    paused.delay_retry("again", 100.0)
    assert paused.retry_at_s == 150.0


def test_a_removed_pool_wakes_for_nobody() -> None:
    """A removed pool with waiting calls is not shown as waking."""
    gone = pool(State.RELEASING)
    gone.removed = True

    assert gone.describe(held=3, now=0.0) == ("draining", "idle for 300 s")


def test_its_memory_is_the_larger_of_what_was_said_and_measured() -> None:
    """The memory is the larger of the stored and the measured value."""
    sized = Pool(PoolSpec(KEY, memory_mib=100.0))
    assert sized.memory_mib == 100.0

    sized.measured_mib = 300.0

    assert sized.memory_mib == 300.0


def test_replicas_are_counted_by_what_becomes_of_them() -> None:
    """A replica that may refuse its drain counts, but not as staying."""
    assert pool().key == KEY
    mixed = pool(State.LOADING, State.READY, State.DRAINING, State.RELEASING, if_idle=True)

    assert (mixed.count(), mixed.staying(), mixed.ready()) == (3, 2, 2)


def test_idle_time_runs_since_the_last_use_of_pool_or_replica() -> None:
    """Idle time counts from the later use of pool and replica."""
    used = pool(State.READY)
    (replica,) = used.replicas.values()
    replica.last_used_s = 40.0
    assert used.idle_s(replica, 100.0) == 60.0

    used.last_used_s = 70.0

    assert used.idle_s(replica, 100.0) == 30.0


def test_a_cold_start_counts_from_its_first_waiter() -> None:
    """Later calls do not restart the wait of a cold start; without waiting calls it ends."""
    called = pool()
    called.observe_load(1, 0, 2.0, 100.0)
    called.observe_load(3, 0, 5.0, 103.0)
    assert called.waiting_since_s == 98.0

    called.observe_load(0, 1, 0.0, 104.0)
    assert called.waiting_since_s is None


def test_a_cold_start_does_not_count_what_a_replica_served() -> None:
    """The oldest call arrived while the replica lived: it waited in vain since its end."""
    idle = pool(State.READY)
    idle.observe_load(0, 0, 0.0, 10.0)
    idle.replicas.clear()

    idle.observe_load(0, 0, 0.0, 20.0)
    idle.observe_load(1, 0, 5.0, 21.0)

    assert idle.waiting_since_s == 20.0


def test_who_waits_in_vain_is_known() -> None:
    """A pool is unserved from the first settling with a waiting call and no replica until one can
    serve; a trial needs no calls."""
    called = pool()
    called.observe_load(1, 0, 2.0, 100.0)
    called.observe_load(1, 0, 3.0, 101.0)
    assert called.unserved_since_s == 100.0

    called.replicas = pool(State.READY).replicas
    called.observe_load(1, 0, 4.0, 102.0)
    assert called.unserved_since_s is None

    trial = Pool(PoolSpec(KEY, role="trial"))
    trial.observe_load(0, 0, 0.0, 100.0)
    assert trial.unserved_since_s == 100.0


def test_a_call_counts_although_it_is_over() -> None:
    """A call counts as a use even if it is over when the gateway reports it."""
    called = pool()
    for now in (100.0, 110.0):
        called.record_call(now)
        called.observe_load(0, 0, 0.0, now)

    assert called.call_rate.per_second(111.0) == pytest.approx(0.1)
    assert called.last_used_s == 110.0


def used_at(*times: float) -> CallRate:
    call_rate = CallRate()
    for now in times:
        call_rate.record_call(now)
    return call_rate


def test_what_was_never_used_costs_nothing() -> None:
    """The eviction cost of a pool that was never used is zero."""
    assert eviction_cost(CallRate(), 5.0, 100.0) == 0.0


def test_who_was_used_last_costs_most() -> None:
    """Without known gaps, eviction costs follow the last use (LRU)."""
    assert eviction_cost(used_at(90.0), 2.0, 100.0) > eviction_cost(used_at(50.0), 2.0, 100.0)


def test_who_loads_for_longer_costs_more() -> None:
    """Of two equally used pools, the one with the longer load time costs more."""
    assert eviction_cost(used_at(50.0), 20.0, 100.0) == 10 * eviction_cost(
        used_at(50.0), 2.0, 100.0
    )


def test_a_load_never_measured_is_assumed() -> None:
    """A revision that was never loaded has a positive eviction cost."""
    assert (
        eviction_cost(used_at(50.0), 0.0, 100.0)
        == eviction_cost(used_at(50.0), UNKNOWN_RELOAD_S, 100.0)
        > 0
    )


def test_a_habit_is_known_by_its_gaps() -> None:
    """A pool called every ten seconds keeps that rate, however recent its last call is."""
    assert used_at(100.0, 110.0, 120.0).per_second(121.0) == pytest.approx(1 / 10)


def test_a_habit_that_ends_is_forgotten() -> None:
    """A pool that was called often and then not for an hour costs less than its silence
    suggests."""
    call_rate = used_at(100.0, 101.0, 102.0)

    assert call_rate.per_second(105.0) == pytest.approx(1.0)
    assert call_rate.per_second(111.0) == pytest.approx(1 / 9)
    assert call_rate.per_second(3702.0) < 1 / 3600


def test_a_silence_between_spells_is_soon_forgotten() -> None:
    """After an hour of silence, a new burst with gaps of ten seconds is soon recognised: one long
    gap moves a geometric mean little."""
    call_rate = used_at(*range(0, 100, 10), *range(3700, 3750, 10))

    assert 10.0 < exp(call_rate.log_gap or 0.0) < 20.0


def test_new_gaps_weigh_more_than_old_ones() -> None:
    """The mean follows the newest gap by a share of it."""
    assert used_at(0.0, 10.0, 30.0).log_gap == pytest.approx(0.85 * log(10.0) + 0.15 * log(20.0))


def test_a_burst_is_no_more_than_one_use_a_second() -> None:
    """Very short gaps count as one call per second."""
    assert used_at(100.0, 100.1, 100.2).per_second(100.2) == 1.0
