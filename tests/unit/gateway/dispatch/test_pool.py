"""One revision as the dispatcher sees it: its load, its estimates, who may wait for it."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Call, Link, Stage
from gateway.dispatch.pool import RATE_SAMPLES_MAX, UNKNOWN, Pool
from registry.errors import FunctionFailing, UnknownFunction
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")


def test_a_pool_never_heard_of_is_cold() -> None:
    """Before the manager says anything a pool has no replica, and may be waited for."""
    pool = Pool(KEY)

    assert (pool.endpoints.state, pool.endpoints.replicas) == ("cold", [])
    assert (len(pool.queue), pool.in_flight, pool.retry_at_s) == (0, 0, 0.0)


def test_what_is_in_flight_is_counted_over_all_links() -> None:
    """Requests at any of its replicas count."""
    pool = Pool(KEY)
    for number in range(3):
        link = Link(f"r{number}", pool.key, 4, marks_started=True)
        for id in range(number):
            link.in_flight[id] = Call(pool.key, META, b"", 0.0, 55.0, 60.0)
        pool.links[link.id] = link

    assert pool.in_flight == 3


def test_pools_share_nothing() -> None:
    """What happens to one pool is not seen in another."""
    one, other = Pool(KEY), Pool("default/b@1")

    one.queue.append(Call(one.key, META, b"", 0.0, 55.0, 60.0))

    assert len(other.queue) == 0


def test_a_pool_rests_when_it_is_as_if_never_heard_of() -> None:
    """Cold, nobody waits, no replica, nothing to say."""
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


def test_waking_begins_with_who_asks_and_ends_with_a_replica() -> None:
    """Whoever waits, would wait, or has it woken elsewhere; a closing link is no replica."""
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


def test_a_pool_is_wanted_for_one_cold_start() -> None:
    """Asked for again while it wakes, it is not wanted for longer; with a replica no more."""
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


def test_the_load_is_of_who_waits_and_who_would() -> None:
    """The one that would wait is counted once, and has waited since the waking began."""
    pool = Pool(KEY)
    assert pool.load(10.0) == NOTHING
    pool.queue.append(Call(pool.key, META, b"", 9.0, 55.0, 60.0))
    pool.wake(10.0)
    pool.update_waking(10.0)

    assert pool.load(12.0) == Load(2, 0, 3.0)
    pool.queue.clear()
    assert pool.load(12.0) == Load(1, 0, 2.0)


def test_the_estimate_is_of_the_line_or_of_the_cold_start() -> None:
    """While a replica serves, by its rate; else what is left of waking it."""
    pool = Pool(KEY)
    pool.cold_start = Expected(1.0, 2.0, 30.0, 9)
    pool.waking_since_s = 10.0
    assert pool.retry_after_s(15.0) == 25

    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    for number in range(20):
        pool.answered_s.append(10.0 + number / 4)
        pool.queue.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert pool.retry_after_s(15.0) == 5


def test_what_nobody_waits_for_is_owed_to_nobody() -> None:
    """A replica may still run what its client has given up."""
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
def test_a_cold_function_is_judged_by_its_past(
    cold_start_s: float, waking_s: float, expected: int
) -> None:
    """What is left until most cold starts are over, in whole seconds between 1 and 60."""
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
def test_a_cold_start_may_be_too_long_for_somebody(
    samples: int, waking_s: float, budget_s: float, *, expected: bool
) -> None:
    """Nine of ten take longer than the caller would wait, and enough of them are known."""
    pool = Pool(KEY, cold_start=Expected(2.0, 3.0, 9.0, samples), waking_since_s=100.0 - waking_s)

    assert pool.starts_too_late(budget_s, 100.0) is expected


def serving(*answered_s: float, waiting: int) -> Pool:
    pool = Pool(KEY, links={"r1": Link("r1", KEY, 1, marks_started=True)})
    pool.answered_s.extend(answered_s)
    for _ in range(waiting):
        pool.queue.append(Call(KEY, META, b"", 0.0, 55.0, 60.0))
    return pool


def test_a_warm_function_is_judged_by_its_rate() -> None:
    """Ten answers in five seconds are two a second, so thirty calls ahead need fifteen."""
    pool = serving(*(95.0 + n / 2 for n in range(10)), waiting=30)

    assert pool.retry_after_s(100.0) == 15


def test_old_answers_say_nothing() -> None:
    """What was answered more than ten seconds ago is no present rate."""
    assert serving(80.0, 85.0, waiting=3).retry_after_s(100.0) == 5


def test_a_single_answer_just_now_is_no_division_by_zero() -> None:
    """The time span is at least a tenth of a second."""
    assert serving(100.0, waiting=40).retry_after_s(100.0) == 4


def test_the_past_is_bounded() -> None:
    """Only the last answers are kept: their rate is as good."""
    answered_s = (90.0 + n / 1000 for n in range(10 * RATE_SAMPLES_MAX))
    pool = serving(*answered_s, waiting=RATE_SAMPLES_MAX)

    assert len(pool.answered_s) == RATE_SAMPLES_MAX
    assert pool.retry_after_s(100.25) == 2


@pytest.mark.parametrize("state", ["cold", "waking", "warm", "draining"])
def test_a_pool_that_can_be_woken_may_be_waited_for(state: str) -> None:
    """No state but failing and gone turns anybody away."""
    assert Pool(KEY, endpoints=PoolEndpoints([], state, "")).refusal(0.0) is None


def test_a_removed_function_is_unknown() -> None:
    """Nobody waits for what was removed."""
    refusal = Pool(KEY, endpoints=PoolEndpoints([], "gone", "")).refusal(0.0)

    assert isinstance(refusal, UnknownFunction)


def test_a_failing_function_says_when_to_try_again() -> None:
    """The cause and the time of the next try are for all, the last lines for admins. Then the next
    try begins, and the gateway needs no word of the manager for it."""
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
    """Below its limit, unless the replica said that it is full or going."""
    link = Link("r1", KEY, 2, marks_started=True, full=full, closing=closing)
    for _ in range(in_flight):
        link.send(Call(KEY, META, b"", 0.0, 55.0, 60.0), 0.0)

    assert (Pool(KEY, links={"r1": link}).least_loaded_link() is link) == expected
