"""The latest news in order, a bounded number of them. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

ITEMS_MAX: Final = 5000
BYTES_MAX: Final = 8 * 2**20


class News(NamedTuple):
    """One thing that is so from now on, or has happened. `data` is its JSON, `about` the function
    that it concerns, "" for everybody."""

    seq: int
    kind: str
    about: str
    data: bytes


class Ring:
    """Whoever has read up to some number reads on from there, while what comes next is kept."""

    def __init__(self, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._items: deque[News] = deque()
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.seq = 0
        """Of the newest; 0 before the first."""

    def add(self, kind: str, about: str, data: bytes) -> None:
        """Keep a piece of news, and let go of the oldest for it."""
        self.seq += 1
        self._items.append(News(self.seq, kind, about, data))
        self._bytes += len(data)
        while len(self._items) > self._items_max or self._bytes > self._bytes_max:
            self._bytes -= len(self._items.popleft().data)

    def clear(self) -> None:
        """Keep nothing; numbers go on, so that nobody takes what comes next for the follow-up of
        what he has read."""
        self._items.clear()
        self._bytes = 0
        self.seq += 1

    def after(self, seq: int) -> list[News] | None:
        """What came since number `seq`, oldest first; None where some of it is not kept any more,
        or that number was never given."""
        missed = self.seq - seq
        if not 0 <= missed <= len(self._items):
            return None
        return [self._items[at] for at in range(len(self._items) - missed, len(self._items))]
