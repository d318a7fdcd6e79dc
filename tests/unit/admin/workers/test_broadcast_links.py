"""Tests of what becomes of a worker's words."""

from __future__ import annotations

from typing import Any, cast

import pytest

from admin.workers.broadcast import WorkerMessages
from admin.workers.messages import Arrived, Beat, Reckoned, Woken
from gateway.metrics.requests import RateSample
from registry.exchange import Demand, Load, encode


class Calls:
    """Stands for each of those whom a worker's words concern: what was said to whom."""

    def __init__(self, said: list[tuple[Any, ...]], who: str) -> None:
        self._said = said
        self._who = who

    def __getattr__(self, what: str) -> Any:
        return lambda *given: self._said.append((self._who, what, *given))


class Process:
    """A worker's process."""

    name = "7"
    counters = "table"

    class channel:
        """Its channel."""

        send = "send"


@pytest.fixture
def said() -> list[tuple[Any, ...]]:
    """Who was told what, in order."""
    return []


@pytest.fixture
def messages(said: list[tuple[Any, ...]]) -> WorkerMessages:
    """Links to whom nothing real belongs."""
    names = ("hub", "overview", "page", "own", "manager", "past")
    return WorkerMessages(*(cast("Any", Calls(said, name)) for name in names))


def test_a_worker_is_joined_and_left_everywhere(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """Counters first, for it counts as soon as it hears; its demand ends with it."""
    process = cast("Any", Process())
    messages.on_started(process)
    assert said == [
        ("page", "add_worker", "7", "table", "send"),
        ("hub", "add_worker", "7", "send"),
    ]
    said.clear()
    messages.on_ended(process)

    assert set(said) == {
        ("page", "remove_worker", "7"),
        ("overview", "remove_worker", "7"),
        ("manager", "worker_lost", "7"),
        ("hub", "remove_worker", "7"),
    }


def test_demand_reaches_the_manager_as_it_came(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """And is counted in the overview."""
    data = encode(Demand("7", 1, True, {"default/f@1": Load(1, 0, 0.1)}))
    messages.on_demand("7", data)

    assert ("manager", "receive_demand", data) in said
    assert [entry[:2] for entry in said] == [
        ("overview", "on_demand"),
        ("manager", "receive_demand"),
    ]


def test_nobody_speaks_for_another(messages: WorkerMessages, said: list[tuple[Any, ...]]) -> None:
    """The demand of a worker that is gone would stay for ever."""
    with pytest.raises(ValueError, match="expected the demand of 7, got that of 8"):
        messages.on_demand("7", encode(Demand("8", 1, True, {})))

    assert said == []


def test_other_words_go_to_whom_they_concern(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """Arrivals to the history, cold starts to the metrics, what is reached to the hub, rates to
    whoever has subscribed."""
    answered = [RateSample("default", "f", (0, 1))]
    end = messages.subscribe(lambda samples: said.append(("rates", samples)))
    messages.on_beat("7", Beat(4, [Arrived("default", "f", 3)], answered))
    end()
    messages.on_cold_start(Woken("default", "f", "r1", {"load": 1.0}))
    messages.on_reached("7", 9)
    reckoned = Reckoned(1, 0.0, {}, {}, {}, [])
    messages.on_reckoned("7", reckoned)

    assert said == [
        ("overview", "on_beat", "7", 4, []),
        ("past", "arrivals", "default", "f", 3),
        ("rates", answered),
        ("own", "count_cold_start", "default", "f", "r1", {"load": 1.0}, None),
        ("hub", "on_reached", "7", 9),
        ("page", "on_reckoned", "7", reckoned),
    ]
