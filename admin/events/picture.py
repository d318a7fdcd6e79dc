"""What watchers were told last. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

KINDS: Final = ("devices", "functions", "replicas")
"""Of things that are so until something else is said."""


class Thing(NamedTuple):
    """One function, replica or device as JSON. `about` is the function that it concerns, "" for
    everybody."""

    id: str
    about: str
    data: bytes


class Picture:
    """Says of each thing whether it looks different from last time."""

    def __init__(self) -> None:
        self._things: dict[str, dict[str, Thing]] = {kind: {} for kind in KINDS}

    def differs(self, kind: str, thing: Thing) -> bool:
        """Whether it is news; it is what it was from now on."""
        known = self._things[kind]
        if known.get(thing.id) == thing:
            return False
        known[thing.id] = thing
        return True

    def gone(self, kind: str, ids: Iterable[str]) -> list[Thing]:
        """Forget those of these that were told of; them."""
        known = self._things[kind]
        return [known.pop(id) for id in list(ids) if id in known]

    def gone_but(self, kind: str, ids: set[str]) -> list[Thing]:
        """Forget those that are not among these; them."""
        return self.gone(kind, self._things[kind].keys() - ids)

    def all(self, kind: str, about: str = "") -> list[bytes]:
        """The JSON of everything told of a kind, of one function's alone if `about` names one."""
        things = self._things[kind].values()
        return [one.data for one in things if not about or one.about in ("", about)]

    def clear(self) -> None:
        """Nobody was told anything."""
        for known in self._things.values():
            known.clear()
