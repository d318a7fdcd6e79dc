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
    Placed,
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
    """Return a live state with a whole snapshot."""
    made = LiveState()
    for kind, data in snapshot(functions):
        made.apply(kind, data, now)
    return made


def test_a_snapshot_is_seen_once_it_is_whole() -> None:
    """A snapshot becomes visible when it is whole; until then the earlier state, or none, is."""
    made = live(line("a"))
    reset, functions, ready, _ = snapshot([line("b")])

    made.apply(*reset, 1.0)
    made.apply(*functions, 1.0)
    before = [*made.resources.functions], made.is_reading, made.is_live(1.0)
    made.apply(*ready, 1.0)

    assert before == (["a"], True, False)
    assert ([*made.resources.functions], made.is_reading, made.is_live(1.0)) == (["b"], False, True)


def test_half_a_snapshot_is_dropped_with_its_connection() -> None:
    """A broken snapshot is dropped; the earlier state stays and is stale."""
    made = live(line("a"))
    reset, functions, *_ = snapshot([line("b")])
    made.apply(*reset, 1.0)
    made.apply(*functions, 1.0)

    made.disconnected("gone", 3.0)

    assert [*made.resources.functions] == ["a"]
    assert not made.is_live(1.0)


def test_items_are_replaced_by_their_names_and_go_when_they_are_gone() -> None:
    """Functions are replaced by name, replicas and devices by id; "gone" removes them."""
    made = live(line("a"), line("b"))
    made.apply("replicas", {"items": [replica("r1", "a", "cpu:0")]}, 1.0)
    made.apply("devices", {"items": [device("cpu:0")]}, 1.0)
    made.apply("functions", {"items": [line("a", state="warm")]}, 1.0)

    made.apply("gone", {"functions": ["b"], "replicas": ["r1"]}, 2.0)

    assert {name: item["state"] for name, item in made.resources.functions.items()} == {"a": "warm"}
    assert made.resources.replicas == {}
    assert [*made.resources.devices] == ["cpu:0"]
    assert [*made.resources.received_s] == ["a"]


def test_a_malformed_item_is_skipped() -> None:
    """A malformed item is skipped and changes nothing else."""
    made = live(line("a"))

    made.apply("functions", {"items": [None, {"name": 3}, {}]}, 1.0)
    made.apply("functions", {}, 1.0)
    made.apply("reset", {"server": "what"}, 1.0)
    made.apply("ready", {}, 1.0)

    assert made.resources.functions == {}


def test_replicas_are_told_by_device() -> None:
    """The replicas of a device are ordered by id."""
    made = live()
    here = [replica("r2", "a", "cpu:0"), replica("r1", "b", "cpu:0"), replica("r3", "b", "cpu:1")]
    made.apply("replicas", {"items": here}, 1.0)

    found = {id: [one.replica["id"] for one in there] for id, there in made.on_device().items()}

    assert found == {"cpu:0": ["r1", "r2"], "cpu:1": ["r3"]}


def test_a_replica_on_several_devices_is_told_on_each() -> None:
    """Each device has it once, with its place among them; a server of an earlier release names only
    one device."""
    made = live()
    wide = replica("r1", "a", "GPU-a", devices=["GPU-a", "GPU-b"])
    old = {key: value for key, value in replica("r2", "b", "GPU-b").items() if key != "devices"}
    made.apply("replicas", {"items": [wide, old]}, 1.0)

    assert made.on_device() == {
        "GPU-a": [Placed(wide, 1, 2)],
        "GPU-b": [Placed(wide, 2, 2), Placed(old, 1, 1)],
    }


def test_a_silent_server_makes_the_picture_old() -> None:
    """The state is stale after a silence, or at once after a break, until the next event."""
    made = live(now=10.0)

    assert made.is_live(10.0 + QUIET_S - 0.1)
    assert not made.is_live(10.0 + QUIET_S)
    made.disconnected("gone", 12.0)
    assert not made.is_live(10.0)
    assert made.age_s(15.0) == 5.0
    made.apply(*beat(), 15.0)
    assert made.is_live(15.0)


def test_the_servers_clock_goes_on_between_beats_and_stops_with_them() -> None:
    """The server's clock advances between beats and stops without them, so that no countdown runs
    on stale data."""
    made = live(now=10.0)
    made.apply(*beat(1000.0), 10.0)

    assert made.server_s(11.5) == 1001.5
    assert made.server_s(10.0 + 2 * QUIET_S) == 1000.0
    assert LiveState().server_s(5.0) == 0.0


def test_log_lines_are_bounded_and_unique() -> None:
    """Log lines are bounded, and an event repeated after a break is one line."""
    made = live()
    for number in range(ACTIVITY_MAX + 5):
        made.apply("decision", {"function": "a", "at_s": number, "text": "x"}, 1.0)
    made.apply("decision", {"function": "a", "at_s": ACTIVITY_MAX, "text": "x"}, 1.0)

    assert len(made.activity) == ACTIVITY_MAX
    assert made.activity[-1].at_s == ACTIVITY_MAX + 4


def test_an_operation_is_told_by_its_latest() -> None:
    """An operation has one line, of its latest phase, so that it does not crowd out others."""
    made = live()
    for phase in ("upload", "verify"):
        data = {"id": "o", "name": "a", "kind": "deploy", "state": "running", "phase": phase}
        made.apply("operation", data, 1.0)
        made.apply("decision", {"function": "a", "at_s": 1.0, "text": phase}, 1.0)

    assert [each.text for each in made.activity] == ["upload", "deploy: verify", "verify"]


def test_a_trend_is_a_rate_a_beat() -> None:
    """A trend has one rate per beat, is bounded, begins at the first call and is dropped if
    flat."""
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
    """A trend restarts after a break, since the rates in between are unknown."""
    made = live(line("a", rate=2.0))
    made.apply(*beat(), 1.0)

    made.disconnected("gone", 2.0)

    assert made.trends == {}


def test_a_decision_is_told_as_it_stands() -> None:
    """A decision's line is its text with its function."""
    data = {"function": "digits", "revision": "digits@1", "at_s": 5.0, "text": "wants 1"}

    assert activity_entry("decision", data) == ActivityEntry(5.0, "decision", "digits", "wants 1")


def test_a_cold_start_says_how_long_it_took() -> None:
    """A cold start's line has its duration; a failed one is marked as bad."""
    data = {"name": "digits", "number": 3, "device_kind": "cpu", "at_s": 5.0, "total_ms": 140}

    good = activity_entry("cold_start", {**data, "outcome": "ready"})
    bad = activity_entry("cold_start", {**data, "outcome": "failed"})

    text = "revision 3 ready after 140 ms on cpu"
    assert good == ActivityEntry(5.0, "cold start", "digits", text)
    assert bad is not None
    assert bad.is_bad


def test_an_operation_is_told_by_its_phase_or_its_end() -> None:
    """An operation's line has its phase or its end; a failed deploy has its reason."""
    data = {"name": "digits", "id": "o", "kind": "deploy", "created_s": 1.0}

    running = activity_entry("operation", {**data, "state": "running", "phase": "trial"})
    failed = activity_entry(
        "operation", {**data, "state": "failed", "ended_s": 2.0, "error": {"detail": "no file"}}
    )

    assert running == ActivityEntry(1.0, "operation", "digits", "deploy: trial", False, "o")
    assert failed == ActivityEntry(2.0, "operation", "digits", "deploy failed: no file", True, "o")


def test_errors_alike_are_counted() -> None:
    """Equal errors are one line with their count."""
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


def test_text_from_the_server_is_one_short_line() -> None:
    """Text from the server is cut to one short line without control characters."""
    told = activity_entry("decision", {"function": "a\x1b", "text": "x\n\x1b[2J" + "y" * 1000})

    assert told is not None
    assert told.function == "a�"
    assert told.text.startswith("x �[2J")
    assert len(told.text) == 300


def test_a_state_change_makes_no_log_line() -> None:
    """State changes and unknown events make no line."""
    assert activity_entry("functions", {"items": []}) is None
    assert activity_entry("weather", {}) is None


def test_a_malformed_number_is_zero() -> None:
    """A missing or malformed number is 0."""
    assert (seconds(None), seconds("x"), seconds(2)) == (0.0, 0.0, 2.0)
    assert name({"name": "a"}) == "a"


def test_only_what_changed_is_told() -> None:
    """`since` returns everything first, then only what differs, then removals."""
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


def test_a_snapshot_is_whole_at_its_first_beat() -> None:
    """`read_live_state` returns at the first beat after a whole snapshot and reads no further."""
    news = iter([*WHOLE, Disconnected("gone", 1.0)])

    live = read_live_state(news, lambda: 0.0)

    assert [each["name"] for each in snapshot_json(live)["functions"]] == ["a", "b"]
    assert next(news) == Disconnected("gone", 1.0)


def test_a_partial_snapshot_is_an_error() -> None:
    """A break within the snapshot is an error with its reason."""
    with pytest.raises(Unreachable, match="gone"):
        read_live_state(iter([*WHOLE[:2], Disconnected("gone", 1.0)]), lambda: 0.0)


def test_a_snapshot_that_never_ends_is_given_up() -> None:
    """A snapshot that is not whole after half a minute of beats is an error."""
    clock = itertools.count(0.0, 10.0)

    with pytest.raises(Unreachable, match="no complete snapshot within 30 s"):
        read_live_state(itertools.repeat(ServerEvent(*beat())), lambda: next(clock))


def test_a_snapshot_has_everything() -> None:
    """The JSON snapshot has server, totals, items and log lines."""
    more = ("replicas", {"items": [replica("r1", "a", "cpu:0")]})
    decision = ("decision", {"function": "a", "at_s": 1.0, "text": "wakes"})
    news = [ServerEvent(*each) for each in snapshot([line("a")], more, decision)]

    found = snapshot_json(read_live_state(iter(news), lambda: 0.0))

    assert found["server"]["driver"] == "process"
    assert found["beat"]["readyz"] == {"status": "ready", "reasons": []}
    assert [each["id"] for each in found["replicas"]] == ["r1"]
    assert found["devices"] == []
    assert found["happened"][0]["text"] == "wakes"
