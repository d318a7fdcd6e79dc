"""Result of a check of a machine: of `fnctl doctor`, and of a server's hosts."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """Result of one check. Its JSON form is that of `fnctl doctor --json` and of the admin API."""

    level: Level
    """"warn": something does not work as well as it could, "fail": something does not work."""
    name: str
    """What is checked."""
    found: str
    """The present state."""
    todo: str = ""
    """Remedy, or what would make more of an ok one possible; "" for neither."""
