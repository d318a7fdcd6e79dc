"""A gateway's half of shared bodies and manual timers, as fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.side import GatewaySide


class Timers:
    """Timers that fire only when the test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Set a timer, as `Loop.after` does."""
        self.due.append((delay_s, action))

    def ring(self) -> None:
        """Fire the only timer."""
        [(_, action)] = self.due
        self.due.clear()
        action()


@pytest.fixture
def side() -> Iterator[GatewaySide]:
    """A gateway's half of a side channel, closed with the test."""
    made = GatewaySide()
    yield made
    made.close()


@pytest.fixture
def timers() -> Timers:
    """Timers under test control."""
    return Timers()
