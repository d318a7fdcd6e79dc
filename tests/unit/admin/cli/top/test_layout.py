from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.cli.live.state import ActivityEntry, LiveState
from admin.cli.top.layout import (
    HELP,
    ScreenState,
    activity_lines,
    footer,
    freshness,
    full_lines,
    header,
    screen_lines,
    wrapped,
)
from admin.cli.top.lines import text
from admin.cli.top.view import View
from admin.client.sse import Disconnected
from admin.documents.events import DecisionEvent
from tests.support.admin_documents import made
from tests.support.event_server import apply, beat, device, line, replica, snapshot

PAGES = {"why": ("a", "warm", *"x" * 50), "help": ("help",)}


def live(functions: int = 30, devices: int = 4) -> LiveState:
    """Return the state of a server with this many functions and devices."""
    seen = LiveState()
    many = [device(f"cpu:{number}") for number in range(devices)]
    on = ("replicas", {"items": [replica("r1", "f1", "cpu:0")]})
    items = [line(f"f{number:04d}", rate=float(number)) for number in range(functions)]
    apply(seen, 10.0, *snapshot(items, ("devices", {"items": many}), on))
    seen.apply(made(DecisionEvent, function="f1", at_s=1.0, text="wakes"), 10.0)
    return seen


def drawn(
    seen: LiveState, state: ScreenState, size: tuple[int, int], now: float = 10.0
) -> list[str]:
    """Return the texts of the screen's lines."""
    return [text(one) for one in screen_lines(seen, state, now, size)[0]]


@given(
    st.integers(60, 250),
    st.integers(15, 80),
    st.sampled_from(["list", "filter", "why", "help", "confirm"]),
    st.integers(0, 60),
    st.integers(0, 40),
    st.floats(0, 60),
)
def test_a_screen_is_as_large_as_its_terminal(
    width: int, height: int, page: str, functions: int, devices: int, later_s: float
) -> None:
    """Every page has exactly the terminal's height and at most its width, whatever the number of
    rows and their age."""
    state = ScreenState("http://a:1", View(page=page, selected="f0003"), "", PAGES)  # type: ignore[arg-type]

    lines, view, visible = screen_lines(
        live(functions, devices), state, 10.0 + later_s, (width, height)
    )

    assert len(lines) == height
    assert max(len(text(one)) for one in lines) <= width
    assert 1 <= visible.rows < height
    assert view.selected == "f0003"


def test_only_what_is_in_sight_is_drawn() -> None:
    """Of a thousand functions only the visible rows around the selected one are drawn."""
    state = ScreenState("http://a:1", View(sort="name", selected="f0500"))

    lines, view, visible = screen_lines(live(1000), state, 10.0, (100, 30))

    shown = [text(one)[:5] for one in lines if text(one).startswith("f0")]
    assert len(shown) == visible.rows < 25
    assert shown[-1] == "f0500"
    assert view.top == 501 - visible.rows
    assert len(visible.names) == 1000


def test_the_smallest_screen_has_every_part() -> None:
    """Sixty columns by fifteen lines are enough for every section."""
    lines = drawn(live(), ScreenState("http://a:1"), (60, 15))

    assert lines[0].startswith("fnctl top")
    assert lines[2].startswith("cpu:0")
    assert sum(one.startswith("f00") for one in lines) >= 5
    assert lines[-2].endswith("f1  wakes")
    assert lines[-1].startswith("q quit")


def test_a_screen_that_is_too_small_says_so() -> None:
    """A screen that is too small shows the size it needs."""
    assert drawn(live(), ScreenState("u"), (50, 15)) == [
        "50x15 is too small: fnctl top needs 60x15",
    ]


def test_old_data_is_faded() -> None:
    """Stale data is dimmed, except for the line with its age and the keys."""
    lines, _, _ = screen_lines(live(), ScreenState("u"), 30.0, (100, 30))

    assert {style for one in lines[2:-1] for _, style in one} <= {"dim", ""}
    assert "silent: 20 s old" in text(lines[0])


def test_an_empty_list_says_why() -> None:
    """An empty list says whether there are no functions, no matches, or no data yet."""
    nobody = View(filter="zzz")

    assert "reading …" in drawn(LiveState(), ScreenState("u"), (100, 30))
    assert "no functions yet: fnctl deploy model.onnx" in drawn(
        live(0), ScreenState("u"), (100, 30)
    )
    assert any(
        "no function has 'zzz'" in one for one in drawn(live(), ScreenState("u", nobody), (100, 30))
    )


def test_a_page_of_text_is_scrolled() -> None:
    """A text page scrolls between head and foot."""
    state = ScreenState("u", View(page="why", scroll=1), pages=PAGES)

    assert drawn(live(), state, (100, 30))[2:4] == ["warm", "x"]


def test_a_long_line_goes_on_below() -> None:
    """A long line wraps, and escape sequences in it are removed."""
    assert wrapped("abc\x1b[2Jdef\n\ng", 5) == ["abc [", "2Jdef", "", "g"]


def test_a_picture_for_a_pipe_has_everything() -> None:
    """A snapshot for a pipe has every section, on as many lines as needed, without keys."""
    lines = [text(one) for one in full_lines(live(100, 40), ScreenState("u"), 10.0, 100)]

    assert sum(one.startswith("f0") for one in lines) == 100
    assert sum(one.startswith("cpu:") for one in lines) == 40
    assert lines[-1].endswith("f1  wakes")
    assert lines.count("") == 3
    empty = [text(one) for one in full_lines(live(0, 0), ScreenState("u"), 10.0, 100)]
    assert "no functions yet: fnctl deploy model.onnx" in empty


pages_of_events = st.permutations(range(12)).flatmap(
    lambda order: st.lists(st.sampled_from(order), max_size=12).map(lambda more: [*order, *more])
)


@given(pages_of_events)
def test_any_order_of_a_snapshot_gives_the_same_screen(order: list[int]) -> None:
    """The screen does not depend on the order of the snapshot's events, nor on repeated ones."""
    reset, *_, ready, last = snapshot([])
    pages = [
        *(("functions", {"items": [line(f"f{n}", rate=float(n))]}) for n in range(4)),
        *(("replicas", {"items": [replica(f"r{n}", f"f{n}", "cpu:0")]}) for n in range(4)),
        *(("devices", {"items": [device(f"cpu:{n}", busy=n / 4)]}) for n in range(4)),
    ]
    seen = LiveState()
    apply(seen, 10.0, reset, *(pages[index] for index in order), ready, last)

    expected = LiveState()
    apply(expected, 10.0, reset, *pages, ready, last)

    assert seen.resources == expected.resources
    assert drawn(seen, ScreenState("u"), (120, 40)) == drawn(expected, ScreenState("u"), (120, 40))


def header_live() -> LiveState:
    """Return a server's state, received at 10.0."""
    seen = LiveState()
    items = [line("a", state="warm"), line("b")]
    replicas = [replica("r1", "a", "cpu:0"), replica("r2", "", role="standby")]
    apply(
        seen,
        10.0,
        *snapshot(items, ("devices", {"items": [device("cpu:0", state="taken")]})),
        ("replicas", {"items": replicas}),
        beat(1000.0, held=3, in_flight=5, rate=41.26),
    )
    return seen


def test_the_head_says_which_server_and_how_it_is() -> None:
    """The head has the address, the server's state and the figures of its last beat."""
    first, second = (text(one) for one in header(header_live(), "http://a:1", 10.0, 120))

    assert first.startswith("fnctl top  http://a:1  fngate 0.1.0  process  up 17 min")
    assert first.endswith(" live")
    figures = ["held 3", "in flight 5", "41/s", "warm 1 of 2", "replicas 1", "standbys 1"]
    assert second.startswith("   ".join([*figures, "devices 1 of 1 in use "]))
    assert second.endswith(" ok")


def test_reasons_have_a_line_of_their_own() -> None:
    """The reasons of a degraded server have a line of their own, which is not cut."""
    seen = header_live()
    readyz = {"status": "degraded", "reasons": ["the disk is full", "a device is\nlost"]}
    apply(seen, 10.0, beat(1000.0, readyz=readyz))

    found = [text(one) for one in header(seen, "http://a:1", 10.0, 60)]

    assert found[1].endswith(" degraded")
    assert found[2] == "the disk is full; a device is lost"


def test_ignored_events_have_a_line_of_their_own() -> None:
    """What cannot be read is named with the reason, without control characters."""
    seen = header_live()
    apply(seen, 10.0, ("beat", {}), ("a\x1b", {}))

    found = [text(one) for one in header(seen, "http://a:1", 10.0, 200)]

    assert found[2] == (
        "ignored events: beat: Object missing required field `at_s`;"
        " a�: this fnctl does not know such events"
    )


def test_old_data_is_called_old() -> None:
    """Stale data is marked with its age and with what is done about it."""
    seen = header_live()
    told = [freshness(seen, 10.0), freshness(seen, 15.0)]
    seen.apply(Disconnected("gone", 4.0), 15.0)
    told += [freshness(seen, 16.0), freshness(seen, 19.0)]

    assert [each for each, _ in told] == [
        "live",
        "silent: 5 s old",
        "reconnecting in 3 s: 6 s old",
        "reconnecting: 9 s old",
    ]
    assert freshness(LiveState(), 0.0)[0] == "reading …"


def test_a_server_of_several_processes_says_so() -> None:
    """The head shows the number of gateway processes if there are several."""
    seen = header_live()
    assert seen.resources.server is not None
    seen.resources.server.workers = 3

    assert "  3 workers  " in text(header(seen, "http://a:1", 10.0, 120)[0])


def test_the_last_happenings_are_told() -> None:
    """The last log lines are shown newest last, with their age by the server's clock."""
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
        (View(page="confirm", selected="a"), "x", "stop the idle replicas of a now? y/n"),
        (View(page="why"), "", "escape back"),
    ],
)
def test_the_foot_says_what_can_be_done(view: View, message: str, start: str) -> None:
    """The foot shows the keys, a question, or an outcome."""
    found = text(footer(view, message, 100))

    assert found.startswith(start)
    assert len(text(footer(view, message, 20))) <= 20


def test_the_foot_says_how_the_list_is_shown() -> None:
    """The foot shows filter and sort order."""
    found = text(footer(View(filter="di", sort="rate"), "", 100))

    assert found.endswith("filter di  sort rate")


def test_the_help_fits_the_smallest_screen() -> None:
    """The help fits the width of the smallest screen."""
    assert max(map(len, HELP.split("\n"))) <= 60
