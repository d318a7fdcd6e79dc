"""The latest events in order, a bounded number of them, and the state that was last sent. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

ITEMS_MAX: Final = 5000
BYTES_MAX: Final = 8 * 2**20

KINDS: Final = ("devices", "functions", "replicas")
"""Kinds of items: each has a state until its next event."""


class Event(NamedTuple):
    """A new state of an item, or something that has happened. `data` is its JSON, `about` the
    function that it concerns, "" for events that concern all."""

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
        """Of the newest; 0 before the first."""

    def add(self, kind: str, about: str, data: bytes) -> None:
        """Append an event; the oldest make room for it."""
        self.seq += 1
        self._items.append(Event(self.seq, kind, about, data))
        self._bytes += len(data)
        while len(self._items) > self._items_max or self._bytes > self._bytes_max:
            self._bytes -= len(self._items.popleft().data)

    def clear(self) -> None:
        """Drop all events. Numbers go on: no reader takes later events for the next ones."""
        self._items.clear()
        self._bytes = 0
        self.seq += 1

    def after(self, seq: int) -> list[Event] | None:
        """The events after number `seq`, oldest first; None where some of them are not kept any
        more, or `seq` was never given."""
        missed = self.seq - seq
        if not 0 <= missed <= len(self._items):
            return None
        return [self._items[at] for at in range(len(self._items) - missed, len(self._items))]


class Item(NamedTuple):
    """One function, replica or device as JSON. `about` is the function that it concerns, "" for
    everybody."""

    id: str
    about: str
    data: bytes


class SentState:
    """The items as they were last sent."""

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
        """Forget the items with these ids; returns those that had been sent."""
        known = self._items[kind]
        return [known.pop(id) for id in list(ids) if id in known]

    def remove_except(self, kind: str, ids: set[str]) -> list[Item]:
        """Forget all items but those with these ids; returns the forgotten ones."""
        return self.remove(kind, self._items[kind].keys() - ids)

    def all(self, kind: str, about: str = "") -> list[bytes]:
        """The JSON of all items of a kind; only those of one function if `about` names one."""
        items = self._items[kind].values()
        return [one.data for one in items if not about or one.about in ("", about)]

    def clear(self) -> None:
        """Forget everything."""
        for known in self._items.values():
            known.clear()
