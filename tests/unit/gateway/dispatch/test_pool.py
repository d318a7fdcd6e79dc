"""Tests of the dispatcher's view of one revision: load, estimates, refusals."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Call, Link, Stage
from gateway.dispatch.pool import RATE_SAMPLES_MAX, UNKNOWN, Pool
from registry.errors import FunctionFailing, UnknownFunction
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")


def test_a_new_pool_is_cold() -> None:
    """A pool that the manager has not reported yet is cold and accepts calls."""
    pool = Pool(KEY)

    assert (pool.endpoints.state, pool.endpoints.replicas) == ("cold", [])
    assert (len(pool.queue), pool.in_flight, pool.retry_at_s) == (0, 0, 0.0)


def test_in_flight_is_the_sum_over_all_links() -> None:
    """Calls in flight at all replicas count."""
    pool = Pool(KEY)
    for number in range(3):
        link = Link(f"r{number}", pool.key, 4, marks_started=True)
        for id in range(number):
            link.in_flight[id] = Call(pool.key, META, b"", 0.0, 55.0, 60.0)
        pool.links[link.id] = link

    assert pool.in_flight == 3


def test_pools_share_nothing() -> None:
    """A change to one pool does not affect another."""
    one, other = Pool(KEY), Pool("default/b@1")

    one.queue.append(Call(one.key, META, b"", 0.0, 55.0, 60.0))

    assert len(other.queue) == 0


def test_a_pool_is_at_rest_without_any_state() -> None:
    """A pool is at rest if it is cold without a reason, calls, links or wake demand."""
    pool = Pool(KEY)
    assert pool.is_at_rest

    pool.endpoints = PoolEndpoints([], "cold", "no memory")
    assert not pool.is_at_rest
    pool.endpoints = UNKNOWN
    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    assert not pool.is_at_rest
    del pool.links["r1"]
    pool.queue.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert not pool.is_at_rest
    pool.queue.clear()
    pool.wake(10.0)
    assert not pool.is_at_rest


def test_waking_begins_with_demand_and_ends_with_a_link() -> None:
    """Queued calls, refused calls and the manager's state waking count as demand; a closing link
    does not count as a replica."""
    pool = Pool(KEY)
    pool.update_waking(10.0)
    assert (pool.waking_since_s, pool.waking_s(20.0)) == (None, 0.0)

    pool.queue.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    pool.update_waking(10.0)
    pool.update_waking(11.0)
    assert (pool.waking_since_s, pool.waking_s(12.0)) == (10.0, 2.0)

    link = pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    pool.update_waking(13.0)
    assert pool.waking_since_s is None
    link.closing = True
    pool.update_waking(14.0)
    assert pool.waking_since_s == 14.0

    pool.queue.clear()
    pool.update_waking(15.0)
    assert pool.waking_since_s is None
    pool.endpoints = PoolEndpoints([], "waking", "min is 1")
    pool.update_waking(16.0)
    assert pool.waking_since_s == 16.0


def test_wake_demand_lasts_one_cold_start() -> None:
    """Another `wake` while it wakes does not extend the demand; a link ends it."""
    pool = Pool(KEY)
    pool.cold_start = Expected(1.0, 2.0, 4.0, 9)

    pool.wake(10.0)
    pool.update_waking(10.0)
    pool.wake(13.0)
    assert pool.wake_until_s == 14.0
    pool.wake(15.0)
    assert pool.load(15.0) == NOTHING
    pool.update_waking(15.0)
    assert (pool.wake_until_s, pool.waking_since_s) == (0.0, None)

    pool.wake(20.0)
    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    pool.update_waking(20.0)
    assert pool.load(20.0) == NOTHING


def test_the_load_counts_queued_calls_and_wake_demand() -> None:
    """Wake demand counts as one queued call that waits since the waking began."""
    pool = Pool(KEY)
    assert pool.load(10.0) == NOTHING
    pool.queue.append(Call(pool.key, META, b"", 9.0, 55.0, 60.0))
    pool.wake(10.0)
    pool.update_waking(10.0)

    assert pool.load(12.0) == Load(2, 0, 3.0)
    pool.queue.clear()
    assert pool.load(12.0) == Load(1, 0, 2.0)


def test_the_estimate_uses_the_queue_or_the_cold_start() -> None:
    """With a replica the estimate comes from the answer rate, else from the rest of the cold
    start."""
    pool = Pool(KEY)
    pool.cold_start = Expected(1.0, 2.0, 30.0, 9)
    pool.waking_since_s = 10.0
    assert pool.retry_after_s(15.0) == 25

    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    for number in range(20):
        pool.answered_s.append(10.0 + number / 4)
        pool.queue.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert pool.retry_after_s(15.0) == 5


def test_abandoned_calls_are_in_flight_but_not_owed() -> None:
    """A replica may still run a cancelled call: it is in flight, but no answer is owed."""
    pool = Pool("default/f@1")
    pool.links["r1"] = Link("r1", pool.key, 4, True)
    for id, stage in enumerate((Stage.SENT, Stage.STARTED, Stage.ABANDONED)):
        call = Call(pool.key, META, b"", 0.0, 1.0, 1.0, stage=stage)
        pool.links["r1"].in_flight[id] = call

    assert (pool.in_flight, pool.owed) == (3, 2)


@pytest.mark.parametrize(
    ("cold_start_s", "waking_s", "expected"),
    [(0.0, 0.0, 5), (12.0, 0.0, 12), (12.0, 3.5, 9), (12.0, 30.0, 1), (900.0, 0.0, 60)],
)
def test_the_estimate_of_a_cold_pool(cold_start_s: float, waking_s: float, expected: int) -> None:
    """The estimate is the rest of a typical cold start, in whole seconds from 1 to 60."""
    pool = Pool(KEY, waking_since_s=100.0 - waking_s)
    if cold_start_s:
        pool.cold_start = Expected(0.0, 0.0, cold_start_s, 10)

    assert pool.retry_after_s(100.0) == expected


@pytest.mark.parametrize(
    ("samples", "waking_s", "budget_s", "expected"),
    [
        (5, 0.0, 1.9, True),
        (5, 0.0, 2.0, False),
        (4, 0.0, 0.0, False),
        (0, 0.0, 0.0, False),
        (5, 1.0, 0.9, True),
        (5, 1.0, 1.0, False),
        (5, 9.0, 0.0, False),
    ],
)
def test_a_wait_budget_may_be_too_short_for_a_cold_start(
    samples: int, waking_s: float, budget_s: float, *, expected: bool
) -> None:
    """Calls are refused if nine of ten known cold starts take longer than the budget and enough are
    known."""
    pool = Pool(KEY, cold_start=Expected(2.0, 3.0, 9.0, samples), waking_since_s=100.0 - waking_s)

    assert pool.starts_too_late(budget_s, 100.0) is expected


def test_a_wake_takes_as_long_as_its_trial_measured() -> None:
    """While a replica sleeps or wakes, whatever cold starts take. One measurement refuses no
    call."""
    parked = PoolEndpoints([], "parked", "asleep", wake_s=3.0)
    pool = Pool(KEY, endpoints=parked, cold_start=Expected(60.0, 70.0, 90.0, 9))
    assert not pool.starts_too_late(1.0, 100.0)
    assert pool.retry_after_s(100.0) == 3

    pool.wake(100.0)
    assert pool.wake_until_s == 103.0
    assert pool.retry_after_s(101.5) == 2
    pool.endpoints = UNKNOWN
    assert pool.starts_too_late(1.0, 101.5)


def serving(*answered_s: float, waiting: int) -> Pool:
    pool = Pool(KEY, links={"r1": Link("r1", KEY, 1, marks_started=True)})
    pool.answered_s.extend(answered_s)
    for _ in range(waiting):
        pool.queue.append(Call(KEY, META, b"", 0.0, 55.0, 60.0))
    return pool


def test_the_estimate_of_a_warm_pool() -> None:
    """Ten answers in five seconds are two a second, so thirty queued calls need fifteen."""
    pool = serving(*(95.0 + n / 2 for n in range(10)), waiting=30)

    assert pool.retry_after_s(100.0) == 15


def test_old_answers_do_not_count_for_the_rate() -> None:
    """Answers more than ten seconds old are not part of the rate."""
    assert serving(80.0, 85.0, waiting=3).retry_after_s(100.0) == 5


def test_a_single_answer_just_now_is_no_division_by_zero() -> None:
    """The time span of the rate is at least a tenth of a second."""
    assert serving(100.0, waiting=40).retry_after_s(100.0) == 4


def test_the_rate_samples_are_bounded() -> None:
    """Only the last answers are kept; they give the same rate."""
    answered_s = (90.0 + n / 1000 for n in range(10 * RATE_SAMPLES_MAX))
    pool = serving(*answered_s, waiting=RATE_SAMPLES_MAX)

    assert len(pool.answered_s) == RATE_SAMPLES_MAX
    assert pool.retry_after_s(100.25) == 2


@pytest.mark.parametrize("state", ["cold", "waking", "warm", "draining"])
def test_a_pool_that_can_be_woken_accepts_calls(state: str) -> None:
    """Only the states failing and gone refuse calls."""
    assert Pool(KEY, endpoints=PoolEndpoints([], state, "")).refusal(0.0) is None


def test_a_removed_function_is_unknown() -> None:
    """A removed pool refuses calls as unknown function."""
    refusal = Pool(KEY, endpoints=PoolEndpoints([], "gone", "")).refusal(0.0)

    assert isinstance(refusal, UnknownFunction)


def test_a_failing_function_says_when_to_try_again() -> None:
    """Cause and time of the next try are for everyone, log lines for administrators; after that
    time calls are accepted without a report from the manager."""
    endpoints = PoolEndpoints([], "failing", "no memory", log_tail=["last line"])
    pool = Pool(KEY, endpoints=endpoints, retry_at_s=116.0)
    refusal = pool.refusal(100.0)

    assert isinstance(refusal, FunctionFailing)
    assert "no memory" in refusal.message
    assert refusal.retry_after_s == 16.0
    assert refusal.admin_detail == {"log_tail": ["last line"]}
    assert pool.refusal(116.0) is None


@pytest.mark.parametrize(
    ("in_flight", "full", "closing", "expected"),
    [
        (1, False, False, True),
        (2, False, False, False),
        (0, True, False, False),
        (0, False, True, False),
    ],
)
def test_when_a_link_has_room(in_flight: int, full: bool, closing: bool, expected: bool) -> None:
    """A link has room below its limit, unless the replica is full or closing."""
    link = Link("r1", KEY, 2, marks_started=True, full=full, closing=closing)
    for _ in range(in_flight):
        link.send(Call(KEY, META, b"", 0.0, 55.0, 60.0), 0.0)

    assert (Pool(KEY, links={"r1": link}).least_loaded_link() is link) == expected
