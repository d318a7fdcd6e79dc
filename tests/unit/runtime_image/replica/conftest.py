"""A gateway's side for the tests of a replica's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.side import GatewaySide


class Timers:
    """A loop's timers, which ring when a test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """As `Loop.after`."""
        self.due.append((delay_s, action))

    def ring(self) -> None:
        """The only one there is."""
        [(_, action)] = self.due
        self.due.clear()
        action()


@pytest.fixture
def side() -> Iterator[GatewaySide]:
    """Closed with the test."""
    made = GatewaySide()
    yield made
    made.close()


@pytest.fixture
def timers() -> Timers:
    """In the test's hands."""
    return Timers()
