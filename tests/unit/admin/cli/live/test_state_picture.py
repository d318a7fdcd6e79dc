from __future__ import annotations

from typing import Any

from admin.cli.live.state import ACTIVITY_MAX, QUIET_S, TREND_MAX, LiveState
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
