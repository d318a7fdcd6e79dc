"""Who may wait."""

from __future__ import annotations

import pytest

from gateway.dispatch.admission import check, foresee, refusal
from gateway.dispatch.call import Call
from gateway.dispatch.estimate import SAMPLES_ENOUGH
from gateway.dispatch.pool import Pool
from registry.errors import FunctionFailing, QueueFull, UnknownFunction, WaitBudgetOver
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints, ReplicaEndpoint
from runtime_image.link.meta import RequestMeta

META = RequestMeta("application/json", "", -1, "")
KEY = "default/a@1"


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
