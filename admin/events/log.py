"""The latest news in order, a bounded number of them. Pure.

What watchers were told last. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

ITEMS_MAX: Final = 5000
BYTES_MAX: Final = 8 * 2**20


class Event(NamedTuple):
    """One thing that is so from now on, or has happened. `data` is its JSON, `about` the function
    that it concerns, "" for everybody."""

    seq: int
    kind: str
    about: str
    data: bytes


class EventLog:
    """Whoever has read up to some number reads on from there, while what comes next is kept."""

    def __init__(self, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._items: deque[Event] = deque()
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.seq = 0
        """Of the newest; 0 before the first."""

    def add(self, kind: str, about: str, data: bytes) -> None:
        """Keep a piece of news, and let go of the oldest for it."""
        self.seq += 1
        self._items.append(Event(self.seq, kind, about, data))
        self._bytes += len(data)
        while len(self._items) > self._items_max or self._bytes > self._bytes_max:
            self._bytes -= len(self._items.popleft().data)

    def clear(self) -> None:
        """Keep nothing; numbers go on, so that nobody takes what comes next for the follow-up of
        what he has read."""
        self._items.clear()
        self._bytes = 0
        self.seq += 1

    def after(self, seq: int) -> list[Event] | None:
        """What came since number `seq`, oldest first; None where some of it is not kept any more,
        or that number was never given."""
        missed = self.seq - seq
        if not 0 <= missed <= len(self._items):
            return None
        return [self._items[at] for at in range(len(self._items) - missed, len(self._items))]


KINDS: Final = ("devices", "functions", "replicas")
"""Of things that are so until something else is said."""


class Item(NamedTuple):
    """One function, replica or device as JSON. `about` is the function that it concerns, "" for
    everybody."""

    id: str
    about: str
    data: bytes


class SentState:
    """Says of each thing whether it looks different from last time."""

    def __init__(self) -> None:
        self._things: dict[str, dict[str, Item]] = {kind: {} for kind in KINDS}

    def update(self, kind: str, thing: Item) -> bool:
        """Whether it is news; it is what it was from now on."""
        known = self._things[kind]
        if known.get(thing.id) == thing:
            return False
        known[thing.id] = thing
        return True

    def gone(self, kind: str, ids: Iterable[str]) -> list[Item]:
        """Forget those of these that were told of; them."""
        known = self._things[kind]
        return [known.pop(id) for id in list(ids) if id in known]

    def remove_except(self, kind: str, ids: set[str]) -> list[Item]:
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
