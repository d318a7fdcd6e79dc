"""Whether callers without a key are let in: the stored decision, and what closes it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple


class Openness(StrEnum):
    """Who may call functions without a key."""

    LOCAL = "local"
    """Nobody has decided yet: callers of this machine, but not what a proxy passes on."""
    CLOSED = "closed"
    """Nobody."""
    OPEN = "open"
    """Everybody who reaches the server, through proxies too: the operator has said so."""


class Decision(NamedTuple):
    """The stored decision. `exposure`: the public hosts and trusted proxies that were set when the
    operator opened the server, so that a new one closes it again."""

    openness: Openness = Openness.LOCAL
    exposure: tuple[str, ...] = ()


CLOSED: Final = Decision(Openness.CLOSED)


def newly_exposed(decision: Decision, exposure: Iterable[str]) -> list[str]:
    """Return what of `exposure` closes the server. [] for a server that is closed already."""
    if decision.openness is Openness.CLOSED:
        return []
    return sorted(set(exposure) - set(decision.exposure))
