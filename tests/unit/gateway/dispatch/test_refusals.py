"""Which calls the dispatcher refuses at once, and with which answer."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Call
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.pool import SAMPLES_ENOUGH, Pool
from registry.errors import FunctionFailing, QueueFull, UnknownFunction, WaitBudgetOver
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints, ReplicaEndpoint
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0


def call(body: bytes = b"", at_s: float = NOW, wait_s: float = 55.0) -> Call:
    """At most two wait beside it."""
    return Call(KEY, META, body, at_s, at_s + wait_s, 60.0, queue_max=2)


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Holds 100 bytes."""
    return Dispatcher(Limits(bytes_max=100))


@pytest.fixture
def slow(dispatcher: Dispatcher) -> Pool:
    """A cold start of it takes between 2 and 9 seconds."""
    pool = dispatcher.pool(KEY)
    pool.cold_start = Expected(2.0, 3.0, 9.0, SAMPLES_ENOUGH)
    return pool


@pytest.mark.parametrize(
    ("state", "error"), [("gone", UnknownFunction), ("failing", FunctionFailing)]
)
def test_nobody_waits_for_a_pool_that_serves_nobody(
    dispatcher: Dispatcher, state: str, error: type[Exception]
) -> None:
    """The answer is the pool's, and nothing is held."""
    dispatcher.pool(KEY).endpoints = PoolEndpoints([], state, "no memory")
    dispatcher.pool(KEY).retry_at_s = NOW + 5.0

    with pytest.raises(error):
        dispatcher.submit(call(b"x"), NOW)
    assert (dispatcher.held_bytes, dispatcher.take_called()) == (0, [])


def test_a_queue_is_full_by_count(dispatcher: Dispatcher) -> None:
    """As many as the function allows may wait, not one more; the estimate counts from when the
    waking began."""
    dispatcher.submit(call(at_s=98.0), 98.0)
    dispatcher.submit(call(at_s=99.0), 99.0)

    with pytest.raises(QueueFull, match="2 requests are queued already, at most 2 may") as refused:
        dispatcher.submit(call(), NOW)
    assert refused.value.retry_after_s == 3


def test_a_queue_is_full_by_bytes(dispatcher: Dispatcher) -> None:
    """All bodies held by this process count, those that still arrive too; what just fits is
    taken."""
    dispatcher.reserve(96)
    with pytest.raises(QueueFull, match="have 96 bytes, at most 100") as refused:
        dispatcher.submit(call(b"12345"), NOW)
    assert refused.value.retry_after_s == 5

    dispatcher.submit(call(b"1234"), NOW)
    assert dispatcher.held_bytes == 100


def test_who_would_wait_in_vain_is_told_at_once(dispatcher: Dispatcher, slow: Pool) -> None:
    """A budget that a cold start cannot meet is over before it began; the function is woken."""
    short = call(wait_s=1.0)

    with pytest.raises(WaitBudgetOver, match="takes about 3 s; this request may wait 1 s") as told:
        dispatcher.submit(short, NOW)

    assert told.value.retry_after_s == 9
    assert short.was_held
    assert slow.load(NOW) == Load(1, 0, 0.0)
    assert slow.load(NOW + 4) == Load(1, 0, 4.0)
    assert slow.load(NOW + 9) == NOTHING


def test_what_has_passed_of_a_cold_start_counts(dispatcher: Dispatcher, slow: Pool) -> None:
    """Who comes late to a waking function waits for what is left of it; whoever comes too early
    does not wake it for longer."""
    for at_s in (NOW, NOW + 0.5):
        with pytest.raises(WaitBudgetOver) as told:
            dispatcher.submit(call(at_s=at_s, wait_s=1.0), at_s)
        assert told.value.retry_after_s == 9

    assert slow.wake_until_s == NOW + 9
    assert dispatcher.submit(call(at_s=NOW + 1.5, wait_s=1.0), NOW + 1.5) == []


@pytest.mark.parametrize("samples", [0, SAMPLES_ENOUGH - 1])
def test_few_cold_starts_turn_nobody_away(dispatcher: Dispatcher, slow: Pool, samples: int) -> None:
    """A guess is no reason to refuse."""
    slow.cold_start = Expected(2.0, 3.0, 9.0, samples)

    assert dispatcher.submit(call(wait_s=0.0), NOW) == []


def test_a_served_function_turns_nobody_away(dispatcher: Dispatcher, slow: Pool) -> None:
    """Whose replica is there but not yet connected waits a moment, not a cold start."""
    endpoint = ReplicaEndpoint("r1", "/s", 1, True, "cpu:0", {})
    slow.endpoints = PoolEndpoints([endpoint], "warm", "busy")

    assert dispatcher.submit(call(wait_s=0.0), NOW) == []
    assert slow.wake_until_s == 0.0
