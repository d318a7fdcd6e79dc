"""Receivers of notifications."""

from __future__ import annotations

import pytest

from pool_manager.subscribers import Subscribers


def test_each_receiver_is_called_until_its_undo() -> None:
    """A second receiver does not replace the first, and unsubscribes independently."""
    first: list[str] = []
    second: list[str] = []
    said = Subscribers[[str]]()
    said.notify("before")
    undo = said.subscribe(first.append)
    said.subscribe(second.append)

    said.notify("both")
    undo()
    undo()
    said.notify("one")

    assert (first, second) == (["both"], ["both", "one"])


def test_a_receiver_may_leave_while_it_is_called() -> None:
    """If a receiver unsubscribes during a notification, the others are still called."""
    seen: list[int] = []
    said = Subscribers[[int]]()
    undo = said.subscribe(lambda _number: undo())
    said.subscribe(seen.append)

    said.notify(1)
    said.notify(2)

    assert seen == [1, 2]


def test_an_error_of_a_receiver_is_raised() -> None:
    """The exception of a receiver is raised to the notifier."""
    said = Subscribers[[int]]()
    said.subscribe(lambda number: [].pop(number))

    with pytest.raises(IndexError):
        said.notify(1)
