"""The events of the machine."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from pool_manager.core import events


def test_the_union_names_every_event() -> None:
    """The union `Event` contains every event class."""
    defined = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and value.__module__ == events.__name__
    }

    assert defined == set(get_args(events.Event))


def test_an_event_cannot_be_changed() -> None:
    """An event is immutable."""
    lost = events.Lost("r1", "exit 1")

    assert (lost.log_tail, lost.stage) == ((), "")
    with pytest.raises(FrozenInstanceError):
        setattr(lost, "reason", "")  # noqa: B010 - mypy refuses the plain assignment as well
