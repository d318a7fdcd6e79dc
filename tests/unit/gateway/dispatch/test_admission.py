"""Who may wait."""

from __future__ import annotations

import pytest

from gateway.dispatch.admission import check, refusal
from gateway.dispatch.call import Call
from gateway.dispatch.pool import Pool
from registry.errors import FunctionFailing, QueueFull, UnknownFunction
from registry.exchange import PoolEndpoints
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
    """As many as the function allows may wait, not one more; the estimate is of the oldest."""
    full = pool()
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
