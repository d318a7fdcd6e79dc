"""The commands of the machine."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from pool_manager.core import commands


def test_the_union_names_every_command() -> None:
    """The union `Command` contains every command class."""
    defined = {
        value
        for value in vars(commands).values()
        if isinstance(value, type) and value.__module__ == commands.__name__
    }

    assert defined == set(get_args(commands.Command))


def test_a_command_cannot_be_changed() -> None:
    """A command is immutable."""
    drain = commands.Drain("r1", 300.0)

    with pytest.raises(FrozenInstanceError):
        setattr(drain, "if_idle_s", None)  # noqa: B010 - mypy refuses the plain assignment
