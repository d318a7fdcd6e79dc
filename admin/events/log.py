"""Bounded log of the latest events, and the item states that were last sent. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

ITEMS_MAX: Final = 5000
BYTES_MAX: Final = 8 * 2**20

KINDS: Final = ("hosts", "devices", "functions", "replicas")
"""Kinds of items; an item's state holds until its next event."""


class Event(NamedTuple):
    """New state of an item, or a single occurrence. `data` is its JSON, `about` the function that
    it concerns ("" for events that concern all)."""

    seq: int
    kind: str
    about: str
    data: bytes


class EventLog:
    """A bounded log: a reader resumes after a number for as long as all later events are kept."""

    def __init__(self, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._items: deque[Event] = deque()
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.seq = 0
        """Number of the newest event; 0 before the first."""

    def add(self, kind: str, about: str, data: bytes) -> None:
        """Append an event, and drop the oldest ones beyond the limits."""
        self.seq += 1
        self._items.append(Event(self.seq, kind, about, data))
        self._bytes += len(data)
        while len(self._items) > self._items_max or self._bytes > self._bytes_max:
            self._bytes -= len(self._items.popleft().data)

    def clear(self) -> None:
        """Drop all events. Numbers continue after a gap, so no reader resumes across the gap."""
        self._items.clear()
        self._bytes = 0
        self.seq += 1

    def after(self, seq: int) -> list[Event] | None:
        """Return the events after number `seq`, oldest first; None if some of them were dropped or
        `seq` was never assigned."""
        missed = self.seq - seq
        if not 0 <= missed <= len(self._items):
            return None
        return [self._items[at] for at in range(len(self._items) - missed, len(self._items))]


class Item(NamedTuple):
    """Function, replica, device or host as JSON. `about` is the function that it concerns, "" for
    all."""

    id: str
    about: str
    data: bytes


class SentState:
    """Item states as last sent."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, Item]] = {kind: {} for kind in KINDS}

    def update(self, kind: str, item: Item) -> bool:
        """Record `item` as sent; True if it differs from what was sent before."""
        known = self._items[kind]
        if known.get(item.id) == item:
            return False
        known[item.id] = item
        return True

    def remove(self, kind: str, ids: Iterable[str]) -> list[Item]:
        """Forget the items with these ids; return those that had been sent."""
        known = self._items[kind]
        return [known.pop(id) for id in list(ids) if id in known]

    def remove_except(self, kind: str, ids: set[str]) -> list[Item]:
        """Forget all items except those with these ids; return the forgotten ones."""
        return self.remove(kind, self._items[kind].keys() - ids)

    def all(self, kind: str, about: str = "") -> list[bytes]:
        """Return the JSON of all items of a kind, or only those of the function `about`."""
        items = self._items[kind].values()
        return [one.data for one in items if not about or one.about in ("", about)]

    def clear(self) -> None:
        """Forget all items."""
        for known in self._items.values():
            known.clear()
