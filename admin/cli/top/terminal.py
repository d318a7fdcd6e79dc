"""The terminal while a screen is on it: keys as they are pressed, signals, and all as it was after.

Signals that only ask for something are noted and wake whoever waits here; those that end the
process are raised as SystemExit, so that every block on the way out is left in order.

What a terminal sends, as names of keys. Pure.

A printable character is its own name; the others are called "up", "enter" and so on.

Lines onto a terminal with rich: a whole screen of its own, or some lines in place.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from admin.cli.top.lines import Line

KEYS_MAX: Final = 200
"""Keys taken from one read: somebody pastes a book."""
_NAMED: Final = {
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x15": "clear",
    b"\x03": "interrupt",
    b"\x0c": "redraw",
    b"\t": "down",
}
_SEQUENCES: Final = {
    b"A": "up",
    b"B": "down",
    b"H": "home",
    b"F": "end",
    b"1~": "home",
    b"7~": "home",
    b"4~": "end",
    b"8~": "end",
    b"5~": "page up",
    b"6~": "page down",
}
_SEQUENCE: Final = re.compile(rb"\x1b[\[O]([0-9;]*[ -/]*[@-~])")
_UNFINISHED: Final = re.compile(rb"\x1b([\[O][0-9;]*)?\Z")


class Keys:
    """Takes bytes, gives keys; a sequence may come in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete with these bytes. Sequences that nobody knows are none."""
        data = self._rest + data
        self._rest = b""
        found: list[str] = []
        while data and len(found) < KEYS_MAX:
            if _UNFINISHED.match(data):
                self._rest = data
                break
            key, length = _first(data)
            data = data[length:]
            found += [key] if key else []
        return found

    def flush(self) -> list[str]:
        """What was held back, once nothing has followed: the escape key itself."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest[:1] == b"\x1b" else []


def _first(data: bytes) -> tuple[str, int]:
    """The first key ("" for none that we know) and how many bytes it is."""
    if known := _SEQUENCE.match(data):
        return _SEQUENCES.get(known.group(1), ""), known.end()
    if data[:1] == b"\x1b":
        return "escape", 1
    if named := _NAMED.get(data[:1]):
        return named, 1
    if data[0] < 0x80:
        return (chr(data[0]) if chr(data[0]).isprintable() else ""), 1
    # No name of ours has a character beyond ASCII: one that is typed is passed over.
    return "", 1


READ_MAX: Final = 4096
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ASKING: Final = (signal.SIGWINCH, signal.SIGTSTP)
_DISABLED: Final = b"\0"
_CODE: Final = 128
"""A shell's exit code of what a signal ended is this and its number."""


class HungUp(Exception):
    """The terminal is gone."""


class Terminal:
    """The terminal behind file descriptor `fd`, for the main thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._keys = Keys()
        self._asked: set[int] = set()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Signals come here while the block runs."""
        before = {
            number: signal.getsignal(number) for number in (*_ENDING, *_ASKING, signal.SIGINT)
        }
        woken = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            for number in _ENDING:
                signal.signal(number, _end)
            for number in _ASKING:
                signal.signal(number, self._note)
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._woken)
            os.close(self._waker)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Keys come at once and are not shown while the block runs; Ctrl-C and Ctrl-Z stay signals.

        No Ctrl-\\, which would leave the terminal like that, and no Ctrl-S, which would freeze it.
        """
        before = termios.tcgetattr(self._fd)
        changed = termios.tcgetattr(self._fd)
        changed[0] &= ~(termios.IXON | termios.ICRNL)
        changed[3] &= ~(termios.ICANON | termios.ECHO)
        control: list[Any] = changed[6]
        control[termios.VMIN], control[termios.VTIME] = 1, 0
        control[termios.VQUIT] = _DISABLED
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, changed)
            yield
        finally:
            # A terminal that hung up has nothing to be put right.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, before)

    def wait(self, timeout_s: float) -> list[str]:
        """The keys pressed within `timeout_s`, as soon as there are any or a signal came.

        Raises HungUp.
        """
        ready, _, _ = select.select([self._fd, self._woken], [], [], max(0.0, timeout_s))
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, READ_MAX)
        if self._fd not in ready:
            return self._keys.flush()
        try:
            data = os.read(self._fd, READ_MAX)
        except OSError as error:
            raise HungUp from error
        if not data:
            raise HungUp
        return self._keys.feed(data)

    def was_resized(self) -> bool:
        """Whether it has another size since this was asked last."""
        return self._took(signal.SIGWINCH)

    def was_stopped(self) -> bool:
        """Whether Ctrl-Z was pressed since this was asked last."""
        return self._took(signal.SIGTSTP)

    def stop(self) -> None:
        """Stop this process as Ctrl-Z does; returns when it goes on."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)

    def _took(self, number: int) -> bool:
        was_asked = number in self._asked
        self._asked.discard(number)
        return was_asked

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._asked.add(number)


def _end(number: int, _frame: FrameType | None) -> None:
    # Once is enough: a second one must not break off what puts the terminal right.
    for each in (*_ENDING, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(_CODE + number)


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
