from __future__ import annotations

import io

from rich.console import Console

from admin.cli.top.lines import Line
from admin.cli.top.terminal import Screen

LINES: list[Line] = [(("[b]warm[/b] ", ""), ("42", "bold red"))]
HIDDEN, SEEN = "\x1b[?25l", "\x1b[?25h"
APART, BACK = "\x1b[?1049h", "\x1b[?1049l"


def console(**settings: object) -> tuple[Console, io.StringIO]:
    """A terminal of 40 x 5."""
    file = io.StringIO()
    chosen = {"force_terminal": True, "color_system": "standard", "legacy_windows": False}
    made = Console(file=file, width=40, height=5, _environ={}, **{**chosen, **settings})  # type: ignore[arg-type]
    return made, file


def test_a_whole_screen_leaves_no_trace() -> None:
    """It is apart from what stood there, which comes back with the cursor."""
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


def test_what_stands_there_is_not_drawn_again() -> None:
    """Unless it is spoilt."""
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
    """Whatever ends the command."""
    made, file = console()
    screen = Screen(made, is_whole=False)
    screen.open()
    screen.show(LINES)
    shown = file.getvalue()
    screen.close()

    assert APART not in shown
    assert shown.rfind(SEEN) > shown.rfind(HIDDEN)


def test_without_colours_the_text_is_the_same() -> None:
    """NO_COLOR leaves weight."""
    made, file = console(no_color=True)

    Screen(made, is_whole=False).print(LINES)

    assert file.getvalue() == "[b]warm[/b] \x1b[1m42\x1b[0m"
