"""Ctrl-C while a step goes on."""

from __future__ import annotations

import signal

import pytest

from admin.image.build import Interrupt


def press(times: int, said: list[str]) -> None:
    """Ctrl-C so often within a block, which says what it gets to."""
    with Interrupt(lambda: said.append("hurry")) as interrupt:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        said.append(f"wanted: {interrupt.is_wanted}")


def fail(times: int) -> None:
    """A block that fails after Ctrl-C was pressed so often."""
    with Interrupt(lambda: None):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("killed")


def test_the_first_is_noted_and_raised_at_the_end() -> None:
    """The block goes on, what can be hurried is hurried, and the end is an interruption."""
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        press(1, said)

    assert said == ["hurry", "wanted: True"]


def test_the_second_does_not_wait() -> None:
    """Whoever insists leaves at once."""
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        press(2, said)

    assert said == ["hurry"]


def test_what_a_hurried_step_fails_with_is_no_failure() -> None:
    """Its error is only the cause of the interruption."""
    with pytest.raises(KeyboardInterrupt) as caught:
        fail(1)

    assert isinstance(caught.value.__cause__, ValueError)


def test_without_ctrl_c_nothing_changes() -> None:
    """Errors pass, and the handler is the one from before."""
    before = signal.getsignal(signal.SIGINT)
    said: list[str] = []

    press(0, said)
    with pytest.raises(ValueError, match="killed"):
        fail(0)

    assert said == ["wanted: False"]
    assert signal.getsignal(signal.SIGINT) is before
