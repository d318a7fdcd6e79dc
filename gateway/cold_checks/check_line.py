"""The order in which large bodies are checked: one after the other, callers in turn. No I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

WAITING_MAX: Final = 64
"""Max bodies that wait for the check."""

T = TypeVar("T")


class CheckLine(Generic[T]):
    """Bodies that wait, by caller. With many bodies a caller delays its own ones, not others'."""

    def __init__(self, most: int = WAITING_MAX) -> None:
        self._most = most
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self.count = 0

    def join(self, caller: str, item: T) -> T | None:
        """Let an item wait. In a full line the newest item of the caller with the most makes room:
        that item is returned, which may be this one."""
        self._waiting.setdefault(caller, deque()).append(item)
        self.count += 1
        if self.count <= self._most:
            return None
        longest = max(self._waiting, key=lambda one: len(self._waiting[one]))
        return self._take(longest, -1)

    def leave(self, caller: str, item: T) -> bool:
        """Remove an item; return whether it waited."""
        items = self._waiting.get(caller, deque())
        if item not in items:
            return False
        self._take(caller, items.index(item))
        return True

    def next(self) -> T | None:
        """Take the oldest item of the caller whose turn it is, None if none waits."""
        if not self._waiting:
            return None
        caller = next(iter(self._waiting))
        self._waiting.move_to_end(caller)
        return self._take(caller, 0)

    def _take(self, caller: str, at: int) -> T:
        items = self._waiting[caller]
        item = items[at]
        del items[at]
        if not items:
            del self._waiting[caller]
        self.count -= 1
        return item
