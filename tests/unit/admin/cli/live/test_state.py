from __future__ import annotations

import itertools
from typing import Any

import pytest

from admin.cli.live.events import ServerEvent, StreamItem
from admin.cli.live.state import (
    ACTIVITY_MAX,
    QUIET_S,
    TREND_MAX,
    ActivityEntry,
    FunctionChanges,
    LiveState,
    activity_entry,
    name,
    read_live_state,
    seconds,
    snapshot_json,
)
from admin.client.sse import Disconnected
from admin.client.transport import Unreachable
from tests.support.event_server import beat, device, line, replica, snapshot


def live(*functions: dict[str, Any], now: float = 0.0) -> LiveState:
    """A picture with a whole snapshot."""
    made = LiveState()
    for kind, data in snapshot(functions):
        made.apply(kind, data, now)
    return made


def test_a_snapshot_is_seen_once_it_is_whole() -> None:
    """Until then there is nothing, or the picture of before."""
    made = live(line("a"))
    reset, functions, ready, _ = snapshot([line("b")])

    made.apply(*reset, 1.0)
    made.apply(*functions, 1.0)
    before = [*made.resources.functions], made.is_reading, made.is_live(1.0)
    made.apply(*ready, 1.0)

    assert before == (["a"], True, False)
    assert ([*made.resources.functions], made.is_reading, made.is_live(1.0)) == (["b"], False, True)


def test_half_a_snapshot_is_dropped_with_its_connection() -> None:
    """What was known stays, and is old."""
    made = live(line("a"))
    reset, functions, *_ = snapshot([line("b")])
    made.apply(*reset, 1.0)
    made.apply(*functions, 1.0)

    made.disconnected("gone", 3.0)

    assert [*made.resources.functions] == ["a"]
    assert not made.is_live(1.0)


def test_items_are_replaced_by_their_names_and_go_when_they_are_gone() -> None:
    """Functions by name, replicas and devices by id."""
    made = live(line("a"), line("b"))
    made.apply("replicas", {"items": [replica("r1", "a", "cpu:0")]}, 1.0)
    made.apply("devices", {"items": [device("cpu:0")]}, 1.0)
    made.apply("functions", {"items": [line("a", state="warm")]}, 1.0)

    made.apply("gone", {"functions": ["b"], "replicas": ["r1"]}, 2.0)

    assert {name: item["state"] for name, item in made.resources.functions.items()} == {"a": "warm"}
    assert made.resources.replicas == {}
    assert [*made.resources.devices] == ["cpu:0"]
    assert [*made.resources.received_s] == ["a"]


def test_what_is_no_item_is_passed_over() -> None:
    """A broken event changes nothing that it does not name."""
    made = live(line("a"))

    made.apply("functions", {"items": [None, {"name": 3}, {}]}, 1.0)
    made.apply("functions", {}, 1.0)
    made.apply("reset", {"server": "what"}, 1.0)
    made.apply("ready", {}, 1.0)

    assert made.resources.functions == {}


def test_replicas_are_told_by_device() -> None:
    """In order of id."""
    made = live()
    here = [replica("r2", "a", "cpu:0"), replica("r1", "b", "cpu:0"), replica("r3", "b", "cpu:1")]
    made.apply("replicas", {"items": here}, 1.0)

    found = {id: [one["id"] for one in found] for id, found in made.on_device().items()}

    assert found == {"cpu:0": ["r1", "r2"], "cpu:1": ["r3"]}


def test_a_silent_server_makes_the_picture_old() -> None:
    """As does a broken connection at once; the next event makes it new."""
    made = live(now=10.0)

    assert made.is_live(10.0 + QUIET_S - 0.1)
    assert not made.is_live(10.0 + QUIET_S)
    made.disconnected("gone", 12.0)
    assert not made.is_live(10.0)
    assert made.age_s(15.0) == 5.0
    made.apply(*beat(), 15.0)
    assert made.is_live(15.0)


def test_the_servers_clock_goes_on_between_beats_and_stops_with_them() -> None:
    """A countdown over old data would pretend to know."""
    made = live(now=10.0)
    made.apply(*beat(1000.0), 10.0)

    assert made.server_s(11.5) == 1001.5
    assert made.server_s(10.0 + 2 * QUIET_S) == 1000.0
    assert LiveState().server_s(5.0) == 0.0


def test_happenings_are_bounded_and_told_once() -> None:
    """The same decision, sent again after a break, is the same decision."""
    made = live()
    for number in range(ACTIVITY_MAX + 5):
        made.apply("decision", {"function": "a", "at_s": number, "text": "x"}, 1.0)
    made.apply("decision", {"function": "a", "at_s": ACTIVITY_MAX, "text": "x"}, 1.0)

    assert len(made.activity) == ACTIVITY_MAX
    assert made.activity[-1].at_s == ACTIVITY_MAX + 4


def test_an_operation_is_told_by_its_latest() -> None:
    """Its phases do not push everything else away."""
    made = live()
    for phase in ("upload", "verify"):
        data = {"id": "o", "name": "a", "kind": "deploy", "state": "running", "phase": phase}
        made.apply("operation", data, 1.0)
        made.apply("decision", {"function": "a", "at_s": 1.0, "text": phase}, 1.0)

    assert [each.text for each in made.activity] == ["upload", "deploy: verify", "verify"]


def test_a_trend_is_a_rate_a_beat() -> None:
    """It is bounded, begins with the first call and is let go when it is flat."""
    made = live(line("a"), line("b"))
    made.apply("functions", {"items": [line("a", rate=2.0)]}, 1.0)
    made.apply(*beat(), 1.0)
    made.apply("functions", {"items": [line("a")]}, 2.0)
    made.apply(*beat(), 2.0)

    assert {name: [*rates] for name, rates in made.trends.items()} == {"a": [2.0, 0.0]}
    for _ in range(TREND_MAX):
        made.apply(*beat(), 3.0)
    assert made.trends == {}


def test_a_trend_has_no_gap() -> None:
    """After a break it begins anew: nobody knows what was meanwhile."""
    made = live(line("a", rate=2.0))
    made.apply(*beat(), 1.0)

    made.disconnected("gone", 2.0)

    assert made.trends == {}


def test_a_decision_is_told_as_it_stands() -> None:
    """Its text, for the function it was made for."""
    data = {"function": "digits", "revision": "digits@1", "at_s": 5.0, "text": "wants 1"}

    assert activity_entry("decision", data) == ActivityEntry(5.0, "decision", "digits", "wants 1")


def test_a_cold_start_says_how_long_it_took() -> None:
    """One that did not end well is bad news."""
    data = {"name": "digits", "number": 3, "device_kind": "cpu", "at_s": 5.0, "total_ms": 140}

    good = activity_entry("cold_start", {**data, "outcome": "ready"})
    bad = activity_entry("cold_start", {**data, "outcome": "failed"})

    text = "revision 3 ready after 140 ms on cpu"
    assert good == ActivityEntry(5.0, "cold start", "digits", text)
    assert bad is not None
    assert bad.is_bad


def test_an_operation_is_told_by_its_phase_or_its_end() -> None:
    """A deploy that failed says why."""
    data = {"name": "digits", "id": "o", "kind": "deploy", "created_s": 1.0}

    running = activity_entry("operation", {**data, "state": "running", "phase": "trial"})
    failed = activity_entry(
        "operation", {**data, "state": "failed", "ended_s": 2.0, "error": {"detail": "no file"}}
    )

    assert running == ActivityEntry(1.0, "operation", "digits", "deploy: trial", False, "o")
    assert failed == ActivityEntry(2.0, "operation", "digits", "deploy failed: no file", True, "o")


def test_errors_alike_are_counted() -> None:
    """Three of one kind are one line."""
    data = {
        "function": "a",
        "code": "poison",
        "detail": "dead",
        "replica": "r1",
        "at_s": 1,
        "count": 3,
    }

    assert activity_entry("error", data) == ActivityEntry(
        1.0, "error", "a", "3 x poison: dead (r1)", True
    )


def test_a_strangers_text_is_one_short_line() -> None:
    """It cannot steer the terminal, break the line or fill the memory."""
    told = activity_entry("decision", {"function": "a\x1b", "text": "x\n\x1b[2J" + "y" * 1000})

    assert told is not None
    assert told.function == "a�"
    assert told.text.startswith("x �[2J")
    assert len(told.text) == 300


def test_what_only_changes_the_state_is_no_happening() -> None:
    """Nor is a kind of event that nobody knows."""
    assert activity_entry("functions", {"items": []}) is None
    assert activity_entry("weather", {}) is None


def test_a_number_that_is_none_is_nought() -> None:
    """A server may leave out what it does not know."""
    assert (seconds(None), seconds("x"), seconds(2)) == (0.0, 0.0, 2.0)
    assert name({"name": "a"}) == "a"


def test_only_what_changed_is_told() -> None:
    """First everything, then what is other than before, then who is gone."""
    changes = FunctionChanges()
    a, b = {"name": "a", "held": 0}, {"name": "b", "held": 0}

    told = [
        changes.since({"b": b, "a": a}),
        changes.since({"b": dict(b), "a": a}),
        changes.since({"b": {**b, "held": 1}}),
        changes.since({}),
    ]

    assert told == [
        [a, b],
        [],
        [{"name": "b", "held": 1}, {"name": "a", "state": "gone"}],
        [{"name": "b", "state": "gone"}],
    ]


WHOLE: list[StreamItem] = [ServerEvent(*each) for each in snapshot([line("b"), line("a")])]


def test_a_picture_is_whole_with_its_first_figures() -> None:
    """Whatever the server tells after that is left to others."""
    news = iter([*WHOLE, Disconnected("gone", 1.0)])

    live = read_live_state(news, lambda: 0.0)

    assert [each["name"] for each in snapshot_json(live)["functions"]] == ["a", "b"]
    assert next(news) == Disconnected("gone", 1.0)


def test_half_a_picture_is_none() -> None:
    """The reason of the break is told."""
    with pytest.raises(Unreachable, match="gone"):
        read_live_state(iter([*WHOLE[:2], Disconnected("gone", 1.0)]), lambda: 0.0)


def test_a_server_that_never_ends_its_snapshot_is_not_listened_to_for_ever() -> None:
    """After half a minute of beats something is wrong."""
    clock = itertools.count(0.0, 10.0)

    with pytest.raises(Unreachable, match="no complete snapshot within 30 s"):
        read_live_state(itertools.repeat(ServerEvent(*beat())), lambda: next(clock))


def test_a_snapshot_has_everything() -> None:
    """Server, figures, nouns and what happened, ready for JSON."""
    more = ("replicas", {"items": [replica("r1", "a", "cpu:0")]})
    decision = ("decision", {"function": "a", "at_s": 1.0, "text": "wakes"})
    news = [ServerEvent(*each) for each in snapshot([line("a")], more, decision)]

    found = snapshot_json(read_live_state(iter(news), lambda: 0.0))

    assert found["server"]["driver"] == "process"
    assert found["beat"]["readyz"] == {"status": "ready", "reasons": []}
    assert [each["id"] for each in found["replicas"]] == ["r1"]
    assert found["devices"] == []
    assert found["happened"][0]["text"] == "wakes"
