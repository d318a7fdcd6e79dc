"""Tests of the gateway's ports towards the supervisor."""

from __future__ import annotations

from admin.workers.messages import Arrived, Beat, Wants, Woken, decode_up
from admin.workers.worker import UNKNOWN_REVISION, SupervisorClient
from gateway.metrics.requests import RateSample
from gateway.observing.errors import Failure
from registry.exchange import Expected


def said(sent: list[bytes]) -> list[object]:
    return [decode_up(data) for data in sent]


def test_demand_is_passed_as_it_is() -> None:
    """It is serialised already; that a worker is lost says the end of its channel."""
    sent: list[bytes] = []
    supervisor = SupervisorClient(sent.append, {})
    supervisor.receive_demand(b"demand")
    supervisor.worker_lost("7")

    assert said(sent) == [Wants(b"demand")]


def test_estimates_are_those_of_the_moment() -> None:
    """Whoever keeps them may add some at any time."""
    known: dict[str, Expected] = {}
    supervisor = SupervisorClient(lambda _: None, known)
    assert supervisor.expected("default/f@1") == UNKNOWN_REVISION
    known["default/f@1"] = Expected(1.0, 1.5, 2.0, 3)

    assert supervisor.expected("default/f@1") == Expected(1.0, 1.5, 2.0, 3)


async def test_a_beat_carries_what_was_answered_and_what_failed() -> None:
    """As it is given, with what the process runs in its background."""
    sent: list[bytes] = []
    answered = [RateSample("default", "f", (0, 1))]
    failures = [Failure("default", "f", "f@1", "not_ready", 1.0, "", "", "id")]
    SupervisorClient(sent.append, {}).beat(answered, failures)

    (beat,) = said(sent)
    assert isinstance(beat, Beat)
    assert (beat.answered, beat.failures) == (answered, failures)


async def test_arrivals_are_told_with_the_next_beat_and_once() -> None:
    """Requests are counted here and told together."""
    sent: list[bytes] = []
    supervisor = SupervisorClient(sent.append, {})
    supervisor.arrived("default", "f")
    supervisor.arrived("default", "g")
    supervisor.arrived("default", "f")
    supervisor.beat([], [])
    supervisor.beat([], [])

    first, second = said(sent)
    assert isinstance(first, Beat)
    assert isinstance(second, Beat)
    assert first.arrived == [Arrived("default", "f", 2), Arrived("default", "g", 1)]
    assert second.arrived == []
    assert first.tasks >= 1


def test_cold_starts_are_told_at_once() -> None:
    """The supervisor counts each of them once over all workers."""
    sent: list[bytes] = []
    SupervisorClient(sent.append, {}).on_cold_start("default", "f", "r1", {"load": 2.0})

    assert said(sent) == [Woken("default", "f", "r1", {"load": 2.0})]
