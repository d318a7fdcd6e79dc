from __future__ import annotations

import pytest

from admin.cli.live.state import ActivityEntry, LiveState
from admin.cli.top.layout import HELP, activity_lines, footer, freshness, header
from admin.cli.top.lines import text
from admin.cli.top.view import View
from tests.support.event_server import beat, device, line, replica, snapshot


def live() -> LiveState:
    """A server with some things, told at 10.0."""
    made = LiveState()
    items = [line("a", state="warm"), line("b")]
    for kind, data in snapshot(items, ("devices", {"items": [device("cpu:0", state="taken")]})):
        made.apply(kind, data, 10.0)
    replicas = [replica("r1", "a", "cpu:0"), replica("r2", "", "", role="standby")]
    made.apply("replicas", {"items": replicas}, 10.0)
    made.apply(*beat(1000.0, held=3, in_flight=5, rate=41.26), 10.0)
    return made


def test_the_head_says_which_server_and_how_it_is() -> None:
    """Its figures are the beat's."""
    first, second = (text(one) for one in header(live(), "http://a:1", 10.0, 120))

    assert first.startswith("fnctl top  http://a:1  fngate 0.1.0  process  up 17 min")
    assert first.endswith(" live")
    figures = ["held 3", "in flight 5", "41/s", "warm 1 of 2", "replicas 1", "standbys 1"]
    assert second.startswith("   ".join([*figures, "devices 1 of 1 in use "]))
    assert second.endswith(" ready")


def test_what_is_wrong_has_a_line_of_its_own() -> None:
    """It is not cut for the sake of figures."""
    made = live()
    readyz = {"status": "degraded", "reasons": ["the disk is full", "a device is\nlost"]}
    made.apply(*beat(1000.0, readyz=readyz), 10.0)

    found = [text(one) for one in header(made, "http://a:1", 10.0, 60)]

    assert found[1].endswith(" degraded")
    assert found[2] == "the disk is full; a device is lost"


def test_old_data_is_called_old() -> None:
    """How old, and what is done about it."""
    made = live()
    told = [freshness(made, 10.0), freshness(made, 15.0)]
    made.disconnected("gone", 19.0)
    told += [freshness(made, 16.0), freshness(made, 19.0)]

    assert [each for each, _ in told] == [
        "live",
        "silent: 5 s old",
        "reconnecting in 3 s: 6 s old",
        "reconnecting: 9 s old",
    ]
    assert freshness(LiveState(), 0.0)[0] == "reading …"


def test_a_server_of_several_processes_says_so() -> None:
    """One need not."""
    made = live()
    made.resources.server["workers"] = 3

    assert "  3 workers  " in text(header(made, "http://a:1", 10.0, 120)[0])


def test_the_last_happenings_are_told() -> None:
    """The newest last, as long ago as it is by the server's clock."""
    told = [
        ActivityEntry(1.0, "decision", "a", "left out"),
        ActivityEntry(940.0, "decision", "a", "wakes"),
        ActivityEntry(1000.0, "error", "b", "poison: dead", True),
        ActivityEntry(1000.0, "decision", "", "starts r1"),
    ]

    assert [text(one) for one in activity_lines(told, 3, 1000.0, 80)] == [
        "  1 min ago  a  wakes",
        "   just now  b  error: poison: dead",
        "   just now  starts r1",
    ]
    assert activity_lines(told, 0, 1000.0, 80) == []
    assert text(activity_lines(told, 1, 0.0, 80)[0]).strip() == "starts r1"


@pytest.mark.parametrize(
    ("view", "message", "start"),
    [
        (View(), "", "q quit  / filter"),
        (View(), "a is\nwarm", "a is warm"),
        (View(page="filter", filter="di"), "x", "/di█"),
        (View(page="confirm", selected="a"), "x", "let the idle replicas of a go now? y/n"),
        (View(page="why"), "", "escape back"),
    ],
)
def test_the_foot_says_what_can_be_done(view: View, message: str, start: str) -> None:
    """Or what is asked, or what came of it."""
    found = text(footer(view, message, 100))

    assert found.startswith(start)
    assert len(text(footer(view, message, 20))) <= 20


def test_the_foot_says_how_the_list_is_shown() -> None:
    """Nobody wonders where the others are."""
    found = text(footer(View(filter="di", sort="rate"), "", 100))

    assert found.endswith("filter di  sort rate")


def test_the_help_fits_the_smallest_screen() -> None:
    """It may have to be scrolled, not read sideways."""
    assert max(map(len, HELP.split("\n"))) <= 60
