from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.cli.top.view import FILTER_MAX, SORTS, Request, View, Visible, press, sorted_functions
from tests.support.event_server import function_row

NAMES = [f"f{number}" for number in range(20)]
SIGHT = Visible(NAMES, 5, text_lines=30, text_rows=10)
KEYS = ["up", "down", "page up", "page down", "home", "end", "enter", "escape", "backspace"]


KEYS += ["clear", "interrupt", "redraw", *"q/swzhynjk? x"]


def after(
    *keys: str, view: View | None = None, visible: Visible = SIGHT
) -> tuple[View, Request | None]:
    """Return the view after these keys, and the last key's request."""
    view, request = view or View(), None
    for key in keys:
        view, request = press(view, key, visible)
    return view, request


@pytest.mark.parametrize(
    ("keys", "selected"),
    [
        (["down", "down", "up"], "f1"),
        (["up"], "f0"),
        (["end"], "f19"),
        (["end", "home"], "f0"),
        (["page down"], "f4"),
        (["page down", " ", "page up"], "f4"),
        (["j", "j", "k"], "f1"),
    ],
)
def test_rows_are_selected(keys: list[str], selected: str) -> None:
    """The selection stops at both ends of the list."""
    assert after(*keys)[0].selected == selected


def test_the_selected_row_is_in_sight() -> None:
    """The selected row is visible after scrolling, sorting or shortening, and no line below stays
    empty."""
    view, _ = after("end")
    shorter = view.scrolled(NAMES[:7], 5)

    assert view.top == 15
    assert shorter.top == 0
    assert view.scrolled([*reversed(NAMES)], 5).top == 0
    assert view.scrolled([], 5).top == 0


def test_a_filter_is_typed() -> None:
    """While a filter is typed, every printable key belongs to it, even one with another meaning."""
    view, _ = after(*"/qsjk z", "backspace")
    typed = view.filter, view.page

    kept, _ = after("enter", view=view)
    dropped, _ = after("escape", view=view)

    assert typed == ("qsjk ", "filter")
    assert (kept.page, kept.filter) == ("list", "qsjk ")
    assert (dropped.page, dropped.filter) == ("list", "")
    assert after("clear", view=view)[0].filter == ""
    assert after("down", view=view)[0].selected == "f1"
    assert after("escape", view=kept)[0].filter == ""
    assert len(after("/", *"x" * 99)[0].filter) == FILTER_MAX


def test_s_goes_through_the_ways_to_sort() -> None:
    """s cycles through the sort orders."""
    found = [after(*"s" * count)[0].sort for count in range(len(SORTS) + 1)]

    assert found == [*SORTS, next(iter(SORTS))]


def test_enter_asks_why() -> None:
    """Enter requests why; its page scrolls within the text, and q, Escape and Enter lead back to
    the list."""
    view, request = after("down", "enter")

    assert (view.page, request) == ("why", Request("why", "f1"))
    assert after("down", "down", "up", view=view)[0].scroll == 1
    assert after("end", view=view)[0].scroll == 20
    assert after("w", view=view)[1] == Request("warm", "f1")
    assert after("x", view=view) == (view, None)
    for key in ("q", "escape", "enter"):
        back, request = after(key, view=view)
        assert (back.page, back.selected, request) == ("list", "f1", None)


def test_w_warms_and_z_asks_before_it_lets_go() -> None:
    """w warms at once; z asks first and acts only on y."""
    assert after("down", "w")[1] == Request("warm", "f1")
    asked, nothing = after("down", "z")
    assert (asked.page, nothing) == ("confirm", None)
    assert after("y", view=asked)[1] == Request("sleep", "f1")
    assert after("n", view=asked)[1] is None
    assert after("n", view=asked)[0].page == "list"
    assert after("x", view=asked) == (asked, None)


def test_the_first_row_is_meant_where_none_was_selected() -> None:
    """Without a selection, actions apply to the first row."""
    assert after("w")[1] == Request("warm", "f0")


def test_help_is_a_page() -> None:
    """Two keys open the help, and every key that leads back closes it."""
    assert after("?")[0].page == "help"
    assert after("h")[0].page == "help"
    assert after("?", "?")[0].page == "list"
    assert after("?", "w")[1] is None


def test_quit_and_interrupt_differ() -> None:
    """q quits the list; Ctrl-C interrupts on every page, even while a filter is typed."""
    assert after("q")[1] == Request("quit")
    assert after("/", "interrupt")[1] == Request("interrupt")
    assert after("redraw")[1] == Request("redraw")


def test_without_functions_nothing_is_selected() -> None:
    """Without functions nothing is selected and no key makes a request."""
    for key in ("enter", "w", "z", "down"):
        assert after(key, visible=Visible([], 5)) == (View(), None)


@given(st.lists(st.sampled_from(KEYS), max_size=40), st.integers(0, 20), st.integers(1, 8))
def test_any_keys_leave_a_view_that_can_be_shown(keys: list[str], count: int, rows: int) -> None:
    """After any keys the view lies within the list and the text."""
    visible = Visible(NAMES[:count], rows, text_lines=12, text_rows=5)

    view, _ = after(*keys, visible=visible)
    settled = view.scrolled(visible.names, rows)

    assert 0 <= settled.top <= max(0, count - 1)
    assert settled.top <= settled.index(visible.names) < settled.top + rows
    assert 0 <= view.scroll <= 7


LINES = [
    function_row("f", state="cold"),
    function_row("a", state="cold", held=3),
    function_row("b", state="warm", rate=900.0, p95_ms=5.0),
    function_row("c", state="warm", p95_ms=9.0),
    function_row("d", state="failing"),
    function_row("e", state="waking"),
]


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("activity", "baedcf"),
        ("name", "abcdef"),
        ("state", "debcaf"),
        ("held", "abcdef"),
        ("rate", "bacdef"),
        ("p95", "cbadef"),
    ],
)
def test_functions_are_sorted(sort: str, names: str) -> None:
    """Functions are sorted; equal ones by name, whatever their order in the state."""
    assert "".join(item.name for item in sorted_functions(LINES, sort, "")) == names
    assert sorted_functions(reversed(LINES), sort, "") == sorted_functions(LINES, sort, "")


def test_a_little_more_load_moves_no_row() -> None:
    """A slightly higher load does not reorder rows, which would jump every second."""
    first = [function_row("a", rate=900.0), function_row("b", rate=901.0)]

    assert [item.name for item in sorted_functions(first, "activity", "")] == ["a", "b"]


def test_a_filter_is_part_of_a_name_or_a_state() -> None:
    """A filter matches part of a name or a state, ignoring case."""
    assert [item.name for item in sorted_functions(LINES, "name", "COLD")] == ["a", "f"]
    assert [item.name for item in sorted_functions(LINES, "name", "B")] == ["b"]
    assert next(iter(SORTS)) == "activity"
