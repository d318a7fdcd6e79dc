"""The terminal while a screen is on it: keys as they are pressed, signals, and all as it was after.

Signals that only ask for something are noted and wake whoever waits here; those that end the
process are raised as SystemExit, so that every block on the way out is left in order.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from admin.cli.top.keys import Keys

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
