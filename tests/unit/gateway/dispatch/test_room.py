"""Tests of the room for answers: which calls are sent while clients do not take theirs."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Call, Command, Link, Send
from gateway.dispatch.dispatcher import ANSWERS_PART, Dispatcher, Limits
from gateway.dispatch.pool import LARGE_ANSWER
from registry.errors import QueueFull
from runtime_image.link.meta import RequestMeta

LARGE, SMALL = "default/large@1", "default/small@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0
LIMIT = ANSWERS_PART * 4 * LARGE_ANSWER


def call(pool: str, body: bytes = b"") -> Call:
    """Return a call that may wait for 55 s."""
    return Call(pool, META, body, NOW, NOW + 55.0, 60.0)


def sent(commands: list[Command]) -> int:
    """Return the number of sends."""
    return sum(isinstance(command, Send) for command in commands)


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Dispatcher with a replica for each of two functions; one has answered with LARGE_ANSWER."""
    dispatcher = Dispatcher(Limits(LIMIT))
    for pool in (LARGE, SMALL):
        dispatcher.on_link_up(Link(pool, pool, 100, marks_started=True), NOW)
        first = call(pool)
        assert dispatcher.send_now(first, NOW)
        dispatcher.on_ended(pool, first.id, NOW, LARGE_ANSWER if pool == LARGE else 10)
    return dispatcher


def calls_sent(dispatcher: Dispatcher, pool: str, count: int) -> int:
    """Submit calls; return how many were sent at once."""
    return sum(sent(dispatcher.submit(call(pool), NOW)) for _ in range(count))


def test_large_answers_have_a_part_of_the_room(dispatcher: Dispatcher) -> None:
    """Calls with large answers are sent while these fit in their part; those of other functions are
    always sent."""
    assert not dispatcher.send_now(call(LARGE), NOW)
    assert calls_sent(dispatcher, LARGE, 6) == 4
    assert calls_sent(dispatcher, SMALL, 6) == 6
    assert dispatcher.send_now(call(SMALL), NOW)


def test_calls_follow_as_clients_take_their_answers(dispatcher: Dispatcher) -> None:
    """An answer that was delivered keeps its room until its client has taken it."""
    waiting = [call(LARGE) for _ in range(6)]
    for each in waiting:
        dispatcher.submit(each, NOW)
    _, commands = dispatcher.on_ended(LARGE, waiting[0].id, NOW, LARGE_ANSWER)
    dispatcher.held.hold_answers(LARGE_ANSWER)
    assert not commands
    assert not dispatcher.on_delivered(LARGE, NOW)
    assert not dispatcher.sweep(NOW)
    dispatcher.held.hold_answers(-LARGE_ANSWER)
    assert sent(dispatcher.sweep(NOW)) == 1


def test_one_large_answer_always_fits(dispatcher: Dispatcher) -> None:
    """A function whose answers exceed the whole limit gets one call after the other."""
    first = call(LARGE)
    dispatcher.submit(first, NOW)
    dispatcher.on_ended(LARGE, first.id, NOW, 2 * LIMIT)
    assert calls_sent(dispatcher, LARGE, 3) == 1


def test_small_answers_are_forgotten_bit_by_bit(dispatcher: Dispatcher) -> None:
    """A function whose answers have become small is as any other."""
    for _ in range(2):
        each = call(LARGE)
        dispatcher.submit(each, NOW)
        dispatcher.on_ended(LARGE, each.id, NOW, 10)
    assert dispatcher.send_now(call(LARGE), NOW)


def test_over_the_limit_nothing_is_accepted_or_sent(dispatcher: Dispatcher) -> None:
    """While clients leave more than the limit, calls are refused and queued ones wait."""
    queued = [call(SMALL) for _ in range(101)]
    for each in queued:
        dispatcher.submit(each, NOW)
    dispatcher.held.hold_answers(LIMIT + 1)
    with pytest.raises(QueueFull, match="answers that their clients have not taken"):
        dispatcher.submit(call(SMALL), NOW)
    _, commands = dispatcher.on_ended(SMALL, queued[0].id, NOW, 10)
    assert not commands
    dispatcher.held.hold_answers(-1)
    assert sent(dispatcher.sweep(NOW)) == 1
