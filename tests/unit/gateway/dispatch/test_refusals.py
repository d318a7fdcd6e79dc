"""Tests of the calls that the dispatcher refuses at once, and of the errors."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Call, Fail
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.pool import SAMPLES_ENOUGH, Pool
from registry.errors import FunctionFailing, Poison, QueueFull, UnknownFunction, WaitBudgetOver
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints, ReplicaEndpoint
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0


def call(body: bytes = b"", at_s: float = NOW, wait_s: float = 55.0) -> Call:
    """Return a call that allows two others in its queue."""
    return Call(KEY, META, body, at_s, at_s + wait_s, 60.0, queue_max=2)


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Dispatcher with room for 100 bytes."""
    return Dispatcher(Limits(bytes_max=100))


@pytest.fixture
def slow(dispatcher: Dispatcher) -> Pool:
    """Pool whose cold start takes between 2 and 9 seconds."""
    pool = dispatcher.pool(KEY)
    pool.cold_start = Expected(2.0, 3.0, 9.0, SAMPLES_ENOUGH)
    return pool


@pytest.mark.parametrize(
    ("state", "error"), [("gone", UnknownFunction), ("failing", FunctionFailing)]
)
def test_a_failing_or_removed_pool_refuses_calls(
    dispatcher: Dispatcher, state: str, error: type[Exception]
) -> None:
    """The pool's refusal is raised, and nothing is held."""
    dispatcher.pool(KEY).endpoints = PoolEndpoints([], state, "no memory")
    dispatcher.pool(KEY).retry_at_s = NOW + 5.0

    with pytest.raises(error):
        dispatcher.submit(call(b"x"), NOW)
    assert (dispatcher.held.bytes, dispatcher.take_called()) == (0, [])


def test_who_keeps_the_devices_is_for_administrators(dispatcher: Dispatcher) -> None:
    """The text of a call whose wait is over has the pool's reason; the names are beside it."""
    why = "no free device (1 in use, 1 of them kept by the min of other functions)"
    for kept_by in ([], ["default/a"]):
        dispatcher.pool(KEY).endpoints = PoolEndpoints([], "waking", why, kept_by=kept_by)
        dispatcher.submit(call(wait_s=1.0), NOW)

        [failed] = dispatcher.sweep(NOW + 1.0)

        assert isinstance(failed, Fail)
        assert failed.error.message.endswith(f"the function is waking: {why}")
        assert failed.error.admin_detail == ({"kept_by": ["a"]} if kept_by else {})


def test_a_queue_is_full_by_count(dispatcher: Dispatcher) -> None:
    """A function's queue limit is exact; Retry-After counts from when the waking began."""
    dispatcher.submit(call(at_s=98.0), 98.0)
    dispatcher.submit(call(at_s=99.0), 99.0)

    with pytest.raises(QueueFull, match="2 requests are queued already, at most 2 may") as refused:
        dispatcher.submit(call(), NOW)
    assert refused.value.retry_after_s == 3


def test_a_queue_is_full_by_bytes(dispatcher: Dispatcher) -> None:
    """All bodies held by the process count, reserved bytes included; the limit is exact."""
    dispatcher.held.bytes += 96
    with pytest.raises(QueueFull, match="have 96 bytes, at most 100") as refused:
        dispatcher.submit(call(b"12345"), NOW)
    assert refused.value.retry_after_s == 5

    dispatcher.submit(call(b"1234"), NOW)
    assert dispatcher.held.bytes == 100


def test_a_budget_below_the_cold_start_is_refused_at_once(
    dispatcher: Dispatcher, slow: Pool
) -> None:
    """A wait budget that no cold start can meet is refused at once; the call wakes the pool."""
    short = call(wait_s=1.0)

    with pytest.raises(WaitBudgetOver, match="takes about 3 s; this request may wait 1 s") as told:
        dispatcher.submit(short, NOW)

    assert told.value.retry_after_s == 9
    assert short.was_held
    assert slow.load(NOW) == Load(1, 0, 0.0)
    assert slow.load(NOW + 4) == Load(1, 0, 4.0)
    assert slow.load(NOW + 9) == NOTHING


def test_the_elapsed_part_of_a_cold_start_counts(dispatcher: Dispatcher, slow: Pool) -> None:
    """A later call waits only for the rest of the cold start; an early refused one does not extend
    the wake demand."""
    for at_s in (NOW, NOW + 0.5):
        with pytest.raises(WaitBudgetOver) as told:
            dispatcher.submit(call(at_s=at_s, wait_s=1.0), at_s)
        assert told.value.retry_after_s == 9

    assert slow.wake_until_s == NOW + 9
    assert dispatcher.submit(call(at_s=NOW + 1.5, wait_s=1.0), NOW + 1.5) == []


@pytest.mark.parametrize("samples", [0, SAMPLES_ENOUGH - 1])
def test_few_cold_starts_refuse_no_call(dispatcher: Dispatcher, slow: Pool, samples: int) -> None:
    """Below SAMPLES_ENOUGH known cold starts no call is refused."""
    slow.cold_start = Expected(2.0, 3.0, 9.0, samples)

    assert dispatcher.submit(call(wait_s=0.0), NOW) == []


def test_a_pool_with_a_replica_refuses_no_call(dispatcher: Dispatcher, slow: Pool) -> None:
    """A published replica that is not connected yet serves the call without a cold start."""
    endpoint = ReplicaEndpoint("r1", "/s", 1, True, ("cpu:0",), {})
    slow.endpoints = PoolEndpoints([endpoint], "warm", "busy")

    assert dispatcher.submit(call(wait_s=0.0), NOW) == []
    assert slow.wake_until_s == 0.0


def test_a_body_that_killed_replicas_is_refused_for_a_minute(dispatcher: Dispatcher) -> None:
    """Only this body, for this pool, and not of exchanges whose body nobody keeps."""
    dispatcher.refuse_body(call(b"bad"), NOW)
    with pytest.raises(Poison) as raised:
        dispatcher.submit(call(b"bad"), NOW + 1.0)
    assert raised.value.retry_after_s == 59.0
    dispatcher.submit(call(b"good"), NOW + 1.0)
    unkept = call(b"bad")
    unkept.may_poison = False
    dispatcher.submit(unkept, NOW + 1.0)
    other = call(b"bad")
    other.pool, other.queue_max = "default/b@1", 9
    dispatcher.submit(other, NOW + 1.0)
    late = call(b"bad")
    late.queue_max = 9
    dispatcher.submit(late, NOW + 60.0)
