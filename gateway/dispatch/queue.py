"""Queue of one revision: three priorities, each in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import takewhile

from gateway.dispatch.call import Call, Priority

TURNS: tuple[Priority, ...] = (
    (Priority.HIGH,) * 3
    + (Priority.NORMAL,)
    + (Priority.HIGH,) * 3
    + (Priority.NORMAL,)
    + (Priority.HIGH,) * 2
    + (Priority.NORMAL, Priority.LOW)
)
"""8 high, 3 normal, 1 low: no priority starves another, and bursts of one are short."""


class CallQueue:
    """Calls of three priorities, served 8:3:1 while calls of all three wait.

    Within a priority, calls are ordered by `Call.position`. The dispatcher numbers positions over
    all pools, so a call keeps its position when it is requeued or moves to another queue.
    """

    def __init__(self) -> None:
        self._by_priority: tuple[deque[Call], ...] = (deque(), deque(), deque())
        self._turn = 0
        self.size = 0
        """Number of calls. Each request looks at it twice, and `len` takes three times as long."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Call]:
        for queued in self._by_priority:
            yield from queued

    def append(self, call: Call) -> None:
        """Add a call whose position is higher than all others."""
        self._by_priority[call.priority].append(call)
        self.size += 1

    def reinsert(self, call: Call) -> None:
        """Requeue a call that was sent and returned, at its old position."""
        queued = self._by_priority[call.priority]
        # Only other returned calls can have lower positions, and they are few.
        ahead = sum(1 for _ in takewhile(lambda other: other.position < call.position, queued))
        queued.insert(ahead, call)
        self.size += 1

    def pop(self) -> Call:
        """Remove and return the next call to serve. Raises IndexError if the queue is empty."""
        for _ in TURNS:
            queued = self._by_priority[TURNS[self._turn]]
            self._turn = (self._turn + 1) % len(TURNS)
            if queued:
                self.size -= 1
                return queued.popleft()
        raise IndexError("the queue is empty")

    def remove(self, call: Call) -> None:
        """Remove a call. Raises ValueError if it is not queued."""
        self._by_priority[call.priority].remove(call)
        self.size -= 1

    def remove_all(self, calls: Sequence[Call]) -> None:
        """Remove those of `calls` that are queued."""
        leaving = set(calls)
        for queued in self._by_priority:
            staying = [call for call in queued if call not in leaving]
            self.size += len(staying) - len(queued)
            queued.clear()
            queued.extend(staying)

    def merge(self, calls: Sequence[Call]) -> None:
        """Insert calls of another queue at their positions.

        Within each priority, `calls` are in order.
        """
        for priority, queued in zip(Priority, self._by_priority, strict=True):
            coming = [call for call in calls if call.priority is priority]
            merged = list(merge(queued, coming, key=lambda call: call.position))
            queued.clear()
            queued.extend(merged)
        self.size += len(calls)

    def clear(self) -> list[Call]:
        """Remove and return all calls."""
        calls = list(self)
        for queued in self._by_priority:
            queued.clear()
        self.size = 0
        return calls

    def oldest_s(self) -> float:
        """Return when the call that has waited longest arrived; infinity for an empty queue."""
        return min(
            (queued[0].arrived_s for queued in self._by_priority if queued), default=float("inf")
        )
