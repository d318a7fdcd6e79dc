from __future__ import annotations

import os
import signal
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from admin.cli.top.terminal import HungUp, Terminal

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
    """Keys come without echo and without a line's end meanwhile."""
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
    """Escape once nothing has followed."""
    ours, theirs = pair
    made = Terminal(theirs)

    with made.taken(), made.raw():
        os.write(ours, b"q")
        first = made.wait(UNTIL_S)
        os.write(ours, b"\x1b")
        second, third = made.wait(UNTIL_S), made.wait(0.0)

    assert (first, second, third) == (["q"], [], ["escape"])


def test_a_terminal_that_hangs_up_is_the_end(pair: tuple[int, int]) -> None:
    """There is nobody left to show anything to."""
    ours, theirs = pair
    made = Terminal(theirs)

    with made.taken(), made.raw():
        os.close(ours)
        with pytest.raises(HungUp):
            made.wait(UNTIL_S)


def test_signals_that_ask_wake_the_wait(pair: tuple[int, int]) -> None:
    """Each is told once; the handlers of before are back afterwards."""
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
    """With the exit code a shell would give; a second one breaks nothing off."""
    made = Terminal(pair[1])

    with made.taken():
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)

    assert ended.value.code == 128 + number
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
