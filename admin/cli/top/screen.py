"""Lines onto a terminal with rich: a whole screen of its own, or some lines in place."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from admin.cli.top.lines import Line


class Frame:
    """Lines as rich draws them. What has no style is not parsed for any: a name is not markup."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for at, line in enumerate(self.lines):
            if at:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, _style(style) if style else None)


class Screen:
    """Shows lines in place, until `close`; `is_whole`: on a screen apart, which leaves no trace."""

    def __init__(self, console: Console, is_whole: bool) -> None:
        self._console = console
        self._is_whole = is_whole
        self._live: Live | None = None
        self._shown: list[Line] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        width, height = self._console.size
        return width, height

    def open(self) -> None:
        """Take the terminal."""
        self._shown = None
        self._live = Live(
            Frame(()),
            console=self._console,
            screen=self._is_whole,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()
        # Whoever stops or kills what draws in place is left with a cursor.
        self._console.show_cursor(not self._is_whole)

    def close(self) -> None:
        """Give the terminal back."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def show(self, lines: list[Line], anew: bool = False) -> None:
        """Draw the lines, unless they stand there already; `anew` even then."""
        if self._live is not None and (anew or lines != self._shown):
            self._shown = lines
            self._live.update(Frame(lines), refresh=True)

    def print(self, lines: Sequence[Line]) -> None:
        """Write the lines once."""
        self._console.print(Frame(lines), soft_wrap=True)


@functools.cache
def _style(name: str) -> Style:
    return Style.parse(name)
