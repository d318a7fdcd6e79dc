"""Terminal of `fnctl top`: keys parsed (pure), raw mode and signals, drawing with rich.

SIGWINCH and SIGTSTP are recorded and wake `Terminal.wait`. Signals that end the process are raised
as SystemExit, so that every block restores the terminal on the way out.
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
"""Max keys from one read, however much is pasted."""
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
READ_MAX: Final = 4096
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_RECORDED: Final = (signal.SIGWINCH, signal.SIGTSTP)
_DISABLED: Final = b"\0"
_CODE: Final = 128
"""A shell's exit code for a signal is this plus the signal's number."""


class Keys:
    """Parser of bytes to names of keys; a sequence may arrive in pieces.

    A printable character is its own name; other keys are "up", "enter" and so on.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that these bytes complete. Unknown sequences are ignored."""
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
        """Return the escape key for an incomplete sequence that nothing followed."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest[:1] == b"\x1b" else []


def _first(data: bytes) -> tuple[str, int]:
    """Return the first key ("" for an unknown one) and its length in bytes."""
    if known := _SEQUENCE.match(data):
        return _SEQUENCES.get(known.group(1), ""), known.end()
    if data[:1] == b"\x1b":
        return "escape", 1
    if named := _NAMED.get(data[:1]):
        return named, 1
    if data[0] < 0x80:
        return (chr(data[0]) if chr(data[0]).isprintable() else ""), 1
    # Function names are ASCII: other characters are ignored.
    return "", 1


class HungUp(Exception):
    """The terminal was closed."""


class Terminal:
    """Terminal of file descriptor `fd`; use it on the main thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._keys = Keys()
        self._recorded: set[int] = set()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle signals while the block runs."""
        before = {
            number: signal.getsignal(number) for number in (*_ENDING, *_RECORDED, signal.SIGINT)
        }
        woken = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            for number in _ENDING:
                signal.signal(number, _end)
            for number in _RECORDED:
                signal.signal(number, self._record)
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._woken)
            os.close(self._waker)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Read keys unbuffered and without echo while the block runs; Ctrl-C, Ctrl-Z are signals.

        Ctrl-\\ is disabled as it would leave the terminal raw, Ctrl-S as it would freeze it.
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
            # A terminal that hung up cannot be restored.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, before)

    def wait(self, timeout_s: float) -> list[str]:
        """Return keys pressed within `timeout_s`: the first ones, or none at a signal.

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
        """Return whether the size changed since the last call."""
        return self._was_recorded(signal.SIGWINCH)

    def was_stopped(self) -> bool:
        """Return whether Ctrl-Z was pressed since the last call."""
        return self._was_recorded(signal.SIGTSTP)

    def stop(self) -> None:
        """Stop this process as Ctrl-Z does; return when it continues."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._record)

    def _was_recorded(self, number: int) -> bool:
        was_recorded = number in self._recorded
        self._recorded.discard(number)
        return was_recorded

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._recorded.add(number)


def _end(number: int, _frame: FrameType | None) -> None:
    # A second signal must not interrupt the restoration of the terminal.
    for each in (*_ENDING, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(_CODE + number)


class Frame:
    """Lines for rich. Text is never parsed for markup."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for at, line in enumerate(self.lines):
            if at:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, _style(style) if style else None)


class Screen:
    """Draws lines in place until `close`; `is_whole`: on the alternate screen, without a trace."""

    def __init__(self, console: Console, is_whole: bool) -> None:
        self._console = console
        self._is_whole = is_whole
        self._live: Live | None = None
        self._shown: list[Line] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and lines."""
        width, height = self._console.size
        return width, height

    def open(self) -> None:
        """Start drawing on the terminal."""
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
        # Lines in place keep the cursor, in case the process is killed.
        self._console.show_cursor(not self._is_whole)

    def close(self) -> None:
        """Stop drawing and restore the terminal."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def show(self, lines: list[Line], anew: bool = False) -> None:
        """Draw the lines if they differ from the last ones, or always if `anew`."""
        if self._live is not None and (anew or lines != self._shown):
            self._shown = lines
            self._live.update(Frame(lines), refresh=True)

    def print(self, lines: Sequence[Line]) -> None:
        """Print the lines once."""
        self._console.print(Frame(lines), soft_wrap=True)


@functools.cache
def _style(name: str) -> Style:
    return Style.parse(name)
