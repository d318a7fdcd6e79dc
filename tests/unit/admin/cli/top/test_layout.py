from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.cli.live.state import LiveState
from admin.cli.top.layout import ScreenState, full_lines, screen_lines, wrapped
from admin.cli.top.lines import text
from admin.cli.top.view import View
from tests.support.event_server import device, line, replica, snapshot

PAGES = {"why": ("a", "warm", *"x" * 50), "help": ("help",)}


def live(functions: int = 30, devices: int = 4) -> LiveState:
    """A server with so many of each."""
    made = LiveState()
    many = [device(f"cpu:{number}") for number in range(devices)]
    on = ("replicas", {"items": [replica("r1", "f1", "cpu:0")]})
    told = ("decision", {"function": "f1", "at_s": 1.0, "text": "wakes"})
    items = [line(f"f{number:04d}", rate=float(number)) for number in range(functions)]
    for kind, data in snapshot(items, ("devices", {"items": many}), on, told):
        made.apply(kind, data, 10.0)
    return made


def drawn(
    made: LiveState, state: ScreenState, size: tuple[int, int], now: float = 10.0
) -> list[str]:
    """The screen's texts."""
    return [text(one) for one in screen_lines(made, state, now, size)[0]]


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
    """On every page, with any number of things, old or new: no line more, none too wide."""
    state = ScreenState("http://a:1", View(page=page, selected="f0003"), "", PAGES)  # type: ignore[arg-type]

    lines, view, visible = screen_lines(
        live(functions, devices), state, 10.0 + later_s, (width, height)
    )

    assert len(lines) == height
    assert max(len(text(one)) for one in lines) <= width
    assert 1 <= visible.rows < height
    assert view.selected == "f0003"


def test_only_what_is_in_sight_is_drawn() -> None:
    """Of a thousand functions some rows, around the selected one."""
    state = ScreenState("http://a:1", View(sort="name", selected="f0500"))

    lines, view, visible = screen_lines(live(1000), state, 10.0, (100, 30))

    shown = [text(one)[:5] for one in lines if text(one).startswith("f0")]
    assert len(shown) == visible.rows < 25
    assert shown[-1] == "f0500"
    assert view.top == 501 - visible.rows
    assert len(visible.names) == 1000


def test_the_smallest_screen_has_every_part() -> None:
    """Sixty columns by fifteen lines are enough to see what goes on."""
    lines = drawn(live(), ScreenState("http://a:1"), (60, 15))

    assert lines[0].startswith("fnctl top")
    assert lines[2].startswith("cpu:0")
    assert sum(one.startswith("f00") for one in lines) >= 5
    assert lines[-2].endswith("f1  wakes")
    assert lines[-1].startswith("q quit")


def test_a_screen_that_is_too_small_says_so() -> None:
    """And what it would take."""
    assert drawn(live(), ScreenState("u"), (50, 15)) == [
        "50x15 is too small: fnctl top needs 60x15",
    ]


def test_old_data_is_faded() -> None:
    """All but the line that says how old it is, and the keys."""
    lines, _, _ = screen_lines(live(), ScreenState("u"), 30.0, (100, 30))

    assert {style for one in lines[2:-1] for _, style in one} <= {"dim", ""}
    assert "silent: 20 s old" in text(lines[0])


def test_an_empty_list_says_why() -> None:
    """There is nothing yet, nothing that matches, or nothing known."""
    nobody = View(filter="zzz")

    assert "reading …" in drawn(LiveState(), ScreenState("u"), (100, 30))
    assert "no functions yet: fnctl deploy model.onnx" in drawn(
        live(0), ScreenState("u"), (100, 30)
    )
    assert any(
        "contains 'zzz'" in one for one in drawn(live(), ScreenState("u", nobody), (100, 30))
    )


def test_a_page_of_text_is_scrolled() -> None:
    """Between head and keys."""
    state = ScreenState("u", View(page="why", scroll=1), pages=PAGES)

    assert drawn(live(), state, (100, 30))[2:4] == ["warm", "x"]


def test_a_long_line_goes_on_below() -> None:
    """And a stranger's escape sequences are none."""
    assert wrapped("abc\x1b[2Jdef\n\ng", 5) == ["abc [", "2Jdef", "", "g"]


def test_a_picture_for_a_pipe_has_everything() -> None:
    """On as many lines as it takes, without keys."""
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
    """Also where pages come twice."""
    reset, *_, ready, last = snapshot([])
    pages = [
        *(("functions", {"items": [line(f"f{n}", rate=float(n))]}) for n in range(4)),
        *(("replicas", {"items": [replica(f"r{n}", f"f{n}", "cpu:0")]}) for n in range(4)),
        *(("devices", {"items": [device(f"cpu:{n}", busy=n / 4)]}) for n in range(4)),
    ]
    made = LiveState()
    for kind, data in [reset, *(pages[index] for index in order), ready, last]:
        made.apply(kind, data, 10.0)

    expected = LiveState()
    for kind, data in [reset, *pages, ready, last]:
        expected.apply(kind, data, 10.0)

    assert made.resources == expected.resources
    assert drawn(made, ScreenState("u"), (120, 40)) == drawn(expected, ScreenState("u"), (120, 40))
