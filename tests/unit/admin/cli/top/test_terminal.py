from __future__ import annotations

import io
import itertools
import os
import signal
import termios
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from admin.cli.top.lines import Line
from admin.cli.top.terminal import KEYS_MAX, HungUp, Keys, Screen, Terminal

UNTIL_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    yield ours, theirs
    for each in (ours, theirs):
        try:
            os.close(each)
        except OSError:
            continue


def test_the_terminal_is_as_it_was_whatever_happens(pair: tuple[int, int]) -> None:
    """Echo and line mode are off meanwhile and restored afterwards, even after an error."""
    _, theirs = pair
    before = termios.tcgetattr(theirs)
    made = Terminal(theirs)

    def fail() -> None:
        with made.raw():
            during.extend(termios.tcgetattr(theirs))
            raise ZeroDivisionError

    during: list[Any] = []
    with made.taken(), pytest.raises(ZeroDivisionError):
        fail()

    assert not during[3] & (termios.ECHO | termios.ICANON)
    assert during[3] & termios.ISIG
    assert termios.tcgetattr(theirs) == before


def test_keys_are_told_as_they_are_pressed(pair: tuple[int, int]) -> None:
    """Keys are read as they are pressed; a lone Escape once nothing has followed."""
    ours, theirs = pair
    made = Terminal(theirs)

    with made.taken(), made.raw():
        os.write(ours, b"q")
        first = made.wait(UNTIL_S)
        os.write(ours, b"\x1b")
        second, third = made.wait(UNTIL_S), made.wait(0.0)

    assert (first, second, third) == (["q"], [], ["escape"])


def test_a_terminal_that_hangs_up_is_the_end(pair: tuple[int, int]) -> None:
    """A terminal that hangs up ends the wait with an error."""
    ours, theirs = pair
    made = Terminal(theirs)

    with made.taken(), made.raw():
        os.close(ours)
        with pytest.raises(HungUp):
            made.wait(UNTIL_S)


def test_signals_that_ask_wake_the_wait(pair: tuple[int, int]) -> None:
    """SIGWINCH and SIGTSTP wake the wait and are reported once; the earlier handlers are
    restored."""
    before = signal.getsignal(signal.SIGWINCH)
    made = Terminal(pair[1])

    with made.taken():
        signal.raise_signal(signal.SIGWINCH)
        assert made.wait(UNTIL_S) == []
        resized = made.was_resized(), made.was_resized()
        signal.raise_signal(signal.SIGTSTP)
        stopped = made.was_stopped(), made.was_stopped()

    assert (resized, stopped) == ((True, False), (True, False))
    assert signal.getsignal(signal.SIGWINCH) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_that_end_are_raised(pair: tuple[int, int], number: signal.Signals) -> None:
    """An ending signal is raised with the shell's exit code; a second one does not interrupt the
    end."""
    made = Terminal(pair[1])

    with made.taken():
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)

    assert ended.value.code == 128 + number
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


TYPED = b"q/\r\x7f\x15\x03\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[1;5C "
NAMES = ["q", "/", "enter", "backspace", "clear", "interrupt", "up", "down"]


NAMES += ["page up", "page down", "home", "end", " "]


def test_keys_have_names() -> None:
    """Known sequences have key names; unknown ones are dropped."""
    assert Keys().feed(TYPED) == NAMES


@given(st.lists(st.integers(0, len(TYPED))))
def test_keys_may_come_in_pieces(cuts: list[int]) -> None:
    """A sequence may arrive in pieces."""
    keys, at = Keys(), [0, *sorted(cuts), len(TYPED)]

    found = [key for a, b in itertools.pairwise(at) for key in keys.feed(TYPED[a:b])]

    assert found == NAMES


def test_escape_alone_is_known_by_what_does_not_follow() -> None:
    """A lone Escape is recognised by a pause, or by a byte that makes no sequence."""
    keys = Keys()

    assert keys.feed(b"\x1b") == []
    assert keys.flush() == ["escape"]
    assert keys.flush() == []
    assert keys.feed(b"\x1bw") == ["escape", "w"]


@given(st.binary(max_size=400))
def test_any_bytes_are_keys_or_nothing(data: bytes) -> None:
    """Any bytes give at most KEYS_MAX keys, all with printable names."""
    found = Keys().feed(data)

    assert len(found) <= KEYS_MAX
    assert all(key.isprintable() for key in found)


LINES: list[Line] = [(("[b]warm[/b] ", ""), ("42", "bold red"))]
HIDDEN, SEEN = "\x1b[?25l", "\x1b[?25h"
APART, BACK = "\x1b[?1049h", "\x1b[?1049l"


def console(**settings: object) -> tuple[Console, io.StringIO]:
    """Return a terminal of 40 x 5."""
    file = io.StringIO()
    chosen = {"force_terminal": True, "color_system": "standard", "legacy_windows": False}
    made = Console(file=file, width=40, height=5, _environ={}, **{**chosen, **settings})  # type: ignore[arg-type]
    return made, file


def test_a_whole_screen_leaves_no_trace() -> None:
    """A full screen uses the alternate buffer; earlier content and cursor return at the end."""
    made, file = console()
    screen = Screen(made, is_whole=True)

    screen.open()
    screen.show(LINES)
    screen.close()
    screen.close()

    written = file.getvalue()
    assert written.startswith(f"{APART}\x1b[H{HIDDEN}")
    assert written.endswith(f"{SEEN}{BACK}")
    assert "[b]warm[/b] \x1b[1;31m42\x1b[0m" in written
    assert screen.size == (40, 5)


def test_unchanged_lines_are_not_drawn_again() -> None:
    """Unchanged lines are not drawn again, unless a redraw is requested."""
    made, file = console()
    screen = Screen(made, is_whole=True)
    screen.open()

    sizes = []
    for anew in (False, False, True):
        before = len(file.getvalue())
        screen.show([*LINES], anew)
        sizes.append(len(file.getvalue()) - before)
    screen.close()

    assert sizes[0] > 0
    assert sizes[1] == 0
    assert sizes[2] == sizes[0]


def test_lines_in_place_stay_and_keep_the_cursor() -> None:
    """Lines in place stay on the terminal, and the cursor returns, however the command ends."""
    made, file = console()
    screen = Screen(made, is_whole=False)
    screen.open()
    screen.show(LINES)
    shown = file.getvalue()
    screen.close()

    assert APART not in shown
    assert shown.rfind(SEEN) > shown.rfind(HIDDEN)


def test_without_colours_the_text_is_the_same() -> None:
    """With NO_COLOR the text is the same, with weights only."""
    made, file = console(no_color=True)

    Screen(made, is_whole=False).print(LINES)

    assert file.getvalue() == "[b]warm[/b] \x1b[1m42\x1b[0m"
