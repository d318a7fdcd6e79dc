"""One revision as the dispatcher sees it: its load, its estimates, who may wait for it."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Call, Link, Stage
from gateway.dispatch.pool import (
    SAMPLES_ENOUGH,
    SAMPLES_MAX,
    UNKNOWN,
    Pace,
    Pool,
    check,
    foresee,
    refusal,
)
from registry.errors import FunctionFailing, QueueFull, UnknownFunction, WaitBudgetOver
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints, ReplicaEndpoint
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")


def test_a_pool_never_heard_of_is_cold() -> None:
    """Before the manager says anything a pool has no replica, and may be waited for."""
    pool = Pool("default/a@1")

    assert (pool.shown.state, pool.shown.replicas) == ("cold", [])
    assert (len(pool.waiting), pool.in_flight, pool.retry_at_s) == (0, 0, 0.0)


def test_what_is_in_flight_is_counted_over_all_links() -> None:
    """Requests at any of its replicas count."""
    pool = Pool("default/a@1")
    for number in range(3):
        link = Link(f"r{number}", pool.key, 4, marks_started=True)
        for id in range(number):
            link.in_flight[id] = Call(pool.key, META, b"", 0.0, 55.0, 60.0)
        pool.links[link.id] = link

    assert pool.in_flight == 3


def test_pools_share_nothing() -> None:
    """What happens to one pool is not seen in another."""
    one, other = Pool("default/a@1"), Pool("default/b@1")

    one.waiting.append(Call(one.key, META, b"", 0.0, 55.0, 60.0))

    assert len(other.waiting) == 0


def test_a_pool_rests_when_it_is_as_if_never_heard_of() -> None:
    """Cold, nobody waits, no replica, nothing to say."""
    pool = Pool("default/a@1")
    assert pool.is_at_rest

    pool.shown = PoolEndpoints([], "cold", "no memory")
    assert not pool.is_at_rest
    pool.shown = UNKNOWN
    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    assert not pool.is_at_rest
    del pool.links["r1"]
    pool.waiting.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert not pool.is_at_rest
    pool.waiting.clear()
    pool.want(10.0)
    assert not pool.is_at_rest


def test_waking_begins_with_who_asks_and_ends_with_a_replica() -> None:
    """Whoever waits, would wait, or has it woken elsewhere; a closing link is no replica."""
    pool = Pool("default/a@1")
    pool.watch(10.0)
    assert (pool.waking_since_s, pool.waking_s(20.0)) == (None, 0.0)

    pool.waiting.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    pool.watch(10.0)
    pool.watch(11.0)
    assert (pool.waking_since_s, pool.waking_s(12.0)) == (10.0, 2.0)

    link = pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    pool.watch(13.0)
    assert pool.waking_since_s is None
    link.closing = True
    pool.watch(14.0)
    assert pool.waking_since_s == 14.0

    pool.waiting.clear()
    pool.watch(15.0)
    assert pool.waking_since_s is None
    pool.shown = PoolEndpoints([], "waking", "min is 1")
    pool.watch(16.0)
    assert pool.waking_since_s == 16.0


def test_a_pool_is_wanted_for_one_cold_start() -> None:
    """Asked for again while it wakes, it is not wanted for longer; with a replica no more."""
    pool = Pool("default/a@1")
    pool.pace.expected = Expected(1.0, 2.0, 4.0, 9)

    pool.want(10.0)
    pool.watch(10.0)
    pool.want(13.0)
    assert pool.wanted_until_s == 14.0
    pool.want(15.0)
    assert pool.load(15.0) == NOTHING
    pool.watch(15.0)
    assert (pool.wanted_until_s, pool.waking_since_s) == (0.0, None)

    pool.want(20.0)
    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    pool.watch(20.0)
    assert pool.load(20.0) == NOTHING


def test_the_load_is_of_who_waits_and_who_would() -> None:
    """The one that would wait is counted once, and has waited since the waking began."""
    pool = Pool("default/a@1")
    assert pool.load(10.0) == NOTHING
    pool.waiting.append(Call(pool.key, META, b"", 9.0, 55.0, 60.0))
    pool.want(10.0)
    pool.watch(10.0)

    assert pool.load(12.0) == Load(2, 0, 3.0)
    pool.waiting.clear()
    assert pool.load(12.0) == Load(1, 0, 2.0)


def test_the_estimate_is_of_the_line_or_of_the_cold_start() -> None:
    """While a replica serves, by its rate; else what is left of waking it."""
    pool = Pool("default/a@1")
    pool.pace.expected = Expected(1.0, 2.0, 30.0, 9)
    pool.waking_since_s = 10.0
    assert pool.retry_after_s(15.0) == 25

    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    for number in range(20):
        pool.pace.answered(10.0 + number / 4)
        pool.waiting.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert pool.retry_after_s(15.0) == 5


def test_what_nobody_waits_for_is_owed_to_nobody() -> None:
    """A replica may still run what its client has given up."""
    pool = Pool("default/f@1")
    pool.links["r1"] = Link("r1", pool.key, 4, True)
    for id, stage in enumerate((Stage.SENT, Stage.STARTED, Stage.ABANDONED)):
        call = Call(pool.key, META, b"", 0.0, 1.0, 1.0, stage=stage)
        pool.links["r1"].in_flight[id] = call

    assert (pool.in_flight, pool.owed) == (3, 2)


def answering(*ends: float, cold_start_s: float = 0.0) -> Pace:
    pace = Pace(Expected(0.0, 0.0, cold_start_s, 10)) if cold_start_s else Pace()
    for end in ends:
        pace.answered(end)
    return pace


@pytest.mark.parametrize(
    ("cold_start_s", "waking_s", "expected"),
    [(0.0, 0.0, 5), (12.0, 0.0, 12), (12.0, 3.5, 9), (12.0, 30.0, 1), (900.0, 0.0, 60)],
)
def test_a_cold_function_is_judged_by_its_past(
    cold_start_s: float, waking_s: float, expected: int
) -> None:
    """What is left until most cold starts are over, in whole seconds between 1 and 60."""
    pace = answering(cold_start_s=cold_start_s)

    assert pace.retry_cold_s(waking_s) == expected


@pytest.mark.parametrize(
    ("samples", "waking_s", "budget_s", "expected"),
    [
        (5, 0.0, 1.9, True),
        (5, 0.0, 2.0, False),
        (4, 0.0, 0.0, False),
        (5, 1.0, 0.9, True),
        (5, 1.0, 1.0, False),
        (5, 9.0, 0.0, False),
    ],
)
def test_a_cold_start_may_be_too_long_for_somebody(
    samples: int, waking_s: float, budget_s: float, *, expected: bool
) -> None:
    """Nine of ten take longer than the caller would wait, and there were enough of them."""
    pace = Pace(Expected(2.0, 3.0, 9.0, samples))

    assert pace.is_too_long(waking_s, budget_s) is expected


def test_a_warm_function_is_judged_by_its_rate() -> None:
    """Ten answers in five seconds are two a second, so thirty calls ahead need fifteen."""
    pace = answering(*(95.0 + n / 2 for n in range(10)), cold_start_s=40.0)

    assert pace.retry_warm_s(30, 100.0) == 15


def test_old_answers_say_nothing() -> None:
    """What was answered more than ten seconds ago is no present rate."""
    assert answering(80.0, 85.0).retry_warm_s(3, 100.0) == 5


def test_a_single_answer_just_now_is_no_division_by_zero() -> None:
    """The time span is at least a tenth of a second."""
    assert answering(100.0).retry_warm_s(40, 100.0) == 4


def test_the_past_is_bounded() -> None:
    """Only the last answers are kept: their rate is as good."""
    pace = answering(*(90.0 + n / 1000 for n in range(10 * SAMPLES_MAX)))

    assert pace.retry_warm_s(10 * SAMPLES_MAX, 100.25) == 11


def call(body: bytes = b"", queue_max: int = 2, arrived_s: float = 0.0) -> Call:
    return Call(KEY, META, body, arrived_s, 55.0, 60.0, queue_max=queue_max)


def pool(state: str = "cold", retry_at_s: float = 0.0) -> Pool:
    shown = PoolEndpoints([], state, "no memory", log_tail=["last line"])
    return Pool(KEY, shown=shown, retry_at_s=retry_at_s)


@pytest.mark.parametrize("state", ["cold", "waking", "warm", "draining"])
def test_a_pool_that_can_be_woken_may_be_waited_for(state: str) -> None:
    """No state but failing and gone turns anybody away."""
    assert refusal(pool(state), 0.0) is None
    check(call(), pool(state), 0.0, 0, 0)


def test_a_removed_function_is_unknown() -> None:
    """Nobody waits for what was removed."""
    with pytest.raises(UnknownFunction, match="removed"):
        check(call(), pool("gone"), 0.0, 0, 100)


def test_a_failing_function_says_when_to_try_again() -> None:
    """The cause and the time of the next try are for all, the last lines for admins."""
    with pytest.raises(FunctionFailing, match="no memory") as refused:
        check(call(), pool("failing", 116.0), 100.0, 0, 100)

    assert refused.value.retry_after_s == 16.0
    assert refused.value.admin_detail == {"log_tail": ["last line"]}


def test_when_the_pause_is_over_a_failing_function_may_be_waited_for() -> None:
    """The gateway needs no word of the manager to let the next try begin."""
    assert refusal(pool("failing", 116.0), 116.0) is None


def test_a_queue_is_full_by_count() -> None:
    """As many as the function allows may wait, not one more; the estimate counts from when the
    waking began."""
    full = pool()
    full.waking_since_s = 98.0
    for arrived_s in (98.0, 99.0):
        check(call(), full, arrived_s, 0, 100)
        full.waiting.append(call(arrived_s=arrived_s))

    with pytest.raises(QueueFull, match="2 requests wait already, at most 2 may") as refused:
        check(call(), full, 100.0, 0, 100)
    assert refused.value.retry_after_s == 3


def test_a_queue_is_full_by_bytes() -> None:
    """All bodies held by this process count; what just fits is taken."""
    check(call(b"1234"), pool(), 0.0, 96, 100)

    with pytest.raises(QueueFull, match="have 96 bytes, at most 100") as refused:
        check(call(b"12345"), pool(), 100.0, 96, 100)
    assert refused.value.retry_after_s == 5


def slow_pool(samples: int = SAMPLES_ENOUGH) -> Pool:
    """A cold start of it takes between 2 and 9 seconds."""
    made = pool()
    made.pace.expected = Expected(2.0, 3.0, 9.0, samples)
    return made


def test_who_would_wait_in_vain_is_told_at_once() -> None:
    """A budget that a cold start cannot meet is over before it began; the function is woken."""
    slow, short = slow_pool(), call(arrived_s=100.0)
    short.wait_until_s = 101.0

    with pytest.raises(WaitBudgetOver, match="takes about 3 s; this request may wait 1 s") as told:
        foresee(short, slow, 100.0)

    assert told.value.retry_after_s == 9
    assert slow.load(100.0) == Load(1, 0, 0.0)
    assert slow.load(104.0) == Load(1, 0, 4.0)
    assert slow.load(109.0) == NOTHING


def test_what_has_passed_of_a_cold_start_counts() -> None:
    """Who comes late to a waking function waits for what is left of it."""
    slow = slow_pool()
    first, second = call(arrived_s=100.0), call(arrived_s=101.5)
    first.wait_until_s, second.wait_until_s = 101.0, 102.5
    with pytest.raises(WaitBudgetOver):
        foresee(first, slow, 100.0)

    foresee(second, slow, 101.5)

    with pytest.raises(WaitBudgetOver) as told:
        foresee(first, slow, 100.5)
    assert told.value.retry_after_s == 9
    assert slow.wanted_until_s == 109.0


@pytest.mark.parametrize("samples", [0, SAMPLES_ENOUGH - 1])
def test_few_cold_starts_turn_nobody_away(samples: int) -> None:
    """A guess is no reason to refuse."""
    short = call()
    short.wait_until_s = 0.0

    foresee(short, slow_pool(samples), 0.0)


def test_a_served_function_turns_nobody_away() -> None:
    """Whose replica is there but not yet connected waits a moment, not a cold start."""
    served, short = slow_pool(), call()
    short.wait_until_s = 0.0
    served.shown = PoolEndpoints(
        [ReplicaEndpoint("r1", "/s", 1, True, "cpu:0", {})], "warm", "busy"
    )

    foresee(short, served, 0.0)

    assert served.load(0.0) == NOTHING
