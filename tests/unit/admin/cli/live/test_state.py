from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from admin.cli.live.events import Ignored
from admin.cli.live.state import (
    ACTIVITY_MAX,
    IGNORED_MAX,
    QUIET_S,
    TREND_MAX,
    ActivityEntry,
    FunctionChanges,
    LiveState,
    Occurrence,
    activity_entry,
    read_live_state,
    snapshot_json,
)
from admin.client.sse import Disconnected
from admin.client.transport import Unreachable
from admin.documents.deploys import OperationRow
from admin.documents.events import DecisionEvent, ErrorEvent, HostEvent
from registry.model.history import ColdStart
from tests.support.admin_documents import made
from tests.support.event_server import (
    apply,
    beat,
    device,
    function_row,
    line,
    read,
    replica,
    snapshot,
)


def live(*functions: dict[str, Any], now: float = 0.0) -> LiveState:
    """Return a live state with a whole snapshot."""
    seen = LiveState()
    apply(seen, now, *snapshot(functions))
    return seen


def test_a_snapshot_is_seen_once_it_is_whole() -> None:
    """A snapshot becomes visible when it is whole; until then the earlier state, or none, is."""
    seen = live(line("a"))
    reset, functions, ready, _ = snapshot([line("b")])

    apply(seen, 1.0, reset)
    apply(seen, 1.0, functions)
    before = [*seen.resources.functions], seen.is_reading, seen.is_live(1.0)
    apply(seen, 1.0, ready)

    assert before == (["a"], True, False)
    assert ([*seen.resources.functions], seen.is_reading, seen.is_live(1.0)) == (["b"], False, True)


def test_half_a_snapshot_is_dropped_with_its_connection() -> None:
    """A broken snapshot is dropped; the earlier state stays and is stale."""
    seen = live(line("a"))
    reset, functions, *_ = snapshot([line("b")])
    apply(seen, 1.0, reset)
    apply(seen, 1.0, functions)

    seen.apply(Disconnected("gone", 1.0), 3.0)

    assert [*seen.resources.functions] == ["a"]
    assert not seen.is_live(1.0)


def test_items_are_replaced_by_their_names_and_go_when_they_are_gone() -> None:
    """Functions are replaced by name, replicas and devices by id; "gone" removes them."""
    seen = live(line("a"), line("b"))
    apply(seen, 1.0, ("replicas", {"items": [replica("r1", "a", "cpu:0")]}))
    apply(seen, 1.0, ("devices", {"items": [device("cpu:0")]}))
    apply(seen, 1.0, ("functions", {"items": [line("a", state="warm")]}))

    apply(seen, 2.0, ("gone", {"functions": ["b"], "replicas": ["r1"]}))

    assert {name: item.state for name, item in seen.resources.functions.items()} == {"a": "warm"}
    assert seen.resources.replicas == {}
    assert [*seen.resources.devices] == ["cpu:0"]
    assert [*seen.resources.received_s] == ["a"]


def test_what_cannot_be_read_is_ignored_with_its_reason() -> None:
    """An event or an item that cannot be read changes nothing else, and the state says why, for a
    bounded number of kinds and until the next snapshot."""
    seen = live(line("a"))
    odd = {key: value for key, value in line("b").items() if key != "state"}

    apply(seen, 1.0, ("functions", {"items": [odd, line("c")]}), ("gone", {"functions": "a"}))
    apply(seen, 1.0, *((f"weather{n}", {}) for n in range(IGNORED_MAX)))

    assert [*seen.resources.functions] == ["a", "c"]
    assert seen.ignored["functions"] == "Object missing required field `state` - at `$.items[]`"
    assert seen.ignored["gone"] == "Expected `array`, got `str` - at `$.functions`"
    assert seen.ignored["weather0"] == "this fnctl does not know such events"
    assert len(seen.ignored) == IGNORED_MAX
    apply(seen, 2.0, snapshot([])[0])
    assert seen.ignored == {}


def test_replicas_are_told_by_device() -> None:
    """The replicas of a device are ordered by id; one on several devices is there once for each,
    with its place among them."""
    seen = live()
    wide, other = replica("r2", "a", "GPU-a", "GPU-b"), replica("r1", "b", "GPU-b")
    apply(seen, 1.0, ("replicas", {"items": [wide, other]}))

    found = {
        id: [(one.replica.id, one.at, one.total) for one in there]
        for id, there in seen.on_device().items()
    }

    assert found == {"GPU-a": [("r2", 1, 2)], "GPU-b": [("r1", 1, 1), ("r2", 2, 2)]}


def test_a_silent_server_makes_the_picture_old() -> None:
    """The state is stale after a silence, or at once after a break, until the next event."""
    seen = live(now=10.0)

    assert seen.is_live(10.0 + QUIET_S - 0.1)
    assert not seen.is_live(10.0 + QUIET_S)
    seen.apply(Disconnected("gone", 1.0), 12.0)
    assert not seen.is_live(10.0)
    assert seen.age_s(15.0) == 5.0
    apply(seen, 15.0, beat())
    assert seen.is_live(15.0)


def test_the_servers_clock_goes_on_between_beats_and_stops_with_them() -> None:
    """The server's clock advances between beats and stops without them, so that no countdown runs
    on stale data."""
    seen = live(now=10.0)
    apply(seen, 10.0, beat(1000.0))

    assert seen.server_s(11.5) == 1001.5
    assert seen.server_s(10.0 + 2 * QUIET_S) == 1000.0
    assert LiveState().server_s(5.0) == 0.0


def test_log_lines_are_bounded_and_unique() -> None:
    """Log lines are bounded, and an event repeated after a break is one line."""
    seen = live()
    for number in range(ACTIVITY_MAX + 5):
        seen.apply(made(DecisionEvent, function="a", at_s=float(number), text="x"), 1.0)
    seen.apply(made(DecisionEvent, function="a", at_s=float(ACTIVITY_MAX), text="x"), 1.0)

    assert len(seen.activity) == ACTIVITY_MAX
    assert seen.activity[-1].at_s == ACTIVITY_MAX + 4


def test_an_operation_is_told_by_its_latest() -> None:
    """An operation has one line, of its latest phase, so that it does not crowd out others."""
    seen = live()
    for phase in ("upload", "verify"):
        seen.apply(made(OperationRow, id="o", name="a", state="running", phase=phase), 1.0)
        seen.apply(made(DecisionEvent, function="a", at_s=1.0, text=phase), 1.0)

    assert [each.text for each in seen.activity] == ["upload", "deploy: verify", "verify"]


def test_a_trend_is_a_rate_a_beat() -> None:
    """A trend has one rate per beat, is bounded, begins at the first call and is dropped if
    flat."""
    seen = live(line("a"), line("b"))
    apply(seen, 1.0, ("functions", {"items": [line("a", rate=2.0)]}))
    apply(seen, 1.0, beat())
    apply(seen, 2.0, ("functions", {"items": [line("a")]}))
    apply(seen, 2.0, beat())

    assert {name: [*rates] for name, rates in seen.trends.items()} == {"a": [2.0, 0.0]}
    for _ in range(TREND_MAX):
        apply(seen, 3.0, beat())
    assert seen.trends == {}


def test_a_trend_has_no_gap() -> None:
    """A trend restarts after a break, since the rates in between are unknown."""
    seen = live(line("a", rate=2.0))
    apply(seen, 1.0, beat())

    seen.apply(Disconnected("gone", 1.0), 2.0)

    assert seen.trends == {}


FAILED = made(
    OperationRow,
    id="o",
    name="digits",
    state="failed",
    created_s=1.0,
    ended_s=2.0,
    error={"detail": "no file"},
)
RUNNING = made(OperationRow, id="o", name="digits", state="running", phase="trial", created_s=1.0)
STARTED = made(
    ColdStart, name="digits", number=3, device_kind="cpu", at_s=5.0, total_ms=140.0, outcome="ready"
)
ERRORS = made(
    ErrorEvent, function="a", code="poison", detail="dead", replica="r1", at_s=1.0, count=3
)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            made(DecisionEvent, function="digits", at_s=5.0, text="wants 1"),
            ActivityEntry(5.0, "decision", "digits", "wants 1"),
        ),
        (
            STARTED,
            ActivityEntry(5.0, "cold start", "digits", "revision 3 ready after 140 ms on cpu"),
        ),
        (
            replace(STARTED, outcome="failed: no room"),
            ActivityEntry(
                5.0,
                "cold start",
                "digits",
                "revision 3 failed: no room after 140 ms on cpu",
                True,
            ),
        ),
        (RUNNING, ActivityEntry(1.0, "operation", "digits", "deploy: trial", False, "o")),
        (FAILED, ActivityEntry(2.0, "operation", "digits", "deploy failed: no file", True, "o")),
        (ERRORS, ActivityEntry(1.0, "error", "a", "3 x poison: dead (r1)", True)),
        (
            made(HostEvent, host="gpu2", change="gone", at_s=3.0, text="host gpu2 is gone"),
            ActivityEntry(3.0, "host", "", "host gpu2 is gone", True),
        ),
    ],
)
def test_what_has_happened_is_an_entry(event: Occurrence, expected: ActivityEntry) -> None:
    """A cold start has its duration, an operation its phase or its end with the reason, equal
    errors their count; what failed is marked."""
    assert activity_entry(event) == expected


def test_text_from_the_server_is_one_short_line() -> None:
    """Text from the server is cut to one short line without control characters."""
    text = "x\n\x1b[2J" + "y" * 1000
    told = activity_entry(made(DecisionEvent, function="a\x1b", text=text))

    assert told.function == "a�"
    assert told.text.startswith("x �[2J")
    assert len(told.text) == 300


def test_only_what_changed_is_told() -> None:
    """`since` returns everything first, then only what differs, then removals."""
    changes = FunctionChanges()
    a, b = function_row("a"), function_row("b")
    busy = function_row("b", held=1)

    told = [
        changes.since({"b": b, "a": a}),
        changes.since({"b": function_row("b"), "a": a}),
        changes.since({"b": busy}),
        changes.since({}),
    ]

    assert told == [([a, b], []), ([], []), ([busy], ["a"]), ([], ["b"])]


WHOLE = read(*snapshot([line("b"), line("a")]))


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
        read_live_state(itertools.repeat(*read(beat())), lambda: next(clock))


def test_a_snapshot_that_cannot_be_read_is_given_up_with_its_reason() -> None:
    """As of a server of another release, whose beats lack something."""
    clock, unread = itertools.count(0.0, 10.0), Ignored("beat", "missing field `held`")

    with pytest.raises(Unreachable, match="within 30 s; ignored: beat: missing field `held`"):
        read_live_state(itertools.repeat(unread), lambda: next(clock))


def test_a_snapshot_has_everything() -> None:
    """The JSON snapshot has server, totals, items and log lines."""
    more = ("replicas", {"items": [replica("r1", "a", "cpu:0")]})
    decision = made(DecisionEvent, function="a", at_s=1.0, text="wakes")
    news = [*read(*snapshot([line("a")], more)[:-1]), decision, *read(("weather", {}), beat())]

    found = snapshot_json(read_live_state(iter(news), lambda: 0.0))

    assert found["server"]["driver"] == "process"
    assert found["beat"]["readyz"] == {"status": "ok", "reasons": []}
    assert [each["id"] for each in found["replicas"]] == ["r1"]
    assert found["devices"] == []
    assert found["happened"][0]["text"] == "wakes"
    assert found["ignored"] == {"weather": "this fnctl does not know such events"}
