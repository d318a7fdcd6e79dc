"""Requests that wait for one revision, in order of arrival within their priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import count, takewhile

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


class WaitingLine:
    """A queue with three priorities served 8:3:1 while all of them wait.

    Lines that calls move between share their `places`, so that a place means the same in all.
    """

    def __init__(self, places: Iterator[int] | None = None) -> None:
        self._lines: tuple[deque[Call], ...] = (deque(), deque(), deque())
        self._turn = 0
        self._places = count(1) if places is None else places

    def __len__(self) -> int:
        high, normal, low = self._lines
        return len(high) + len(normal) + len(low)

    def __bool__(self) -> bool:
        high, normal, low = self._lines
        return bool(normal or high or low)

    def __iter__(self) -> Iterator[Call]:
        for line in self._lines:
            yield from line

    def append(self, call: Call) -> None:
        """Take a place at the end."""
        self.pass_by(call)
        self._lines[call.priority].append(call)

    def pass_by(self, call: Call) -> None:
        """Nobody waits: it takes the place that it would have had, and need not stand in it."""
        call.place = next(self._places)

    def put_back(self, call: Call) -> None:
        """Take its old place again: the call had left it without its own fault."""
        line = self._lines[call.priority]
        # Only calls that came back too can stand before it, and they are few.
        ahead = sum(1 for _ in takewhile(lambda other: other.place < call.place, line))
        line.insert(ahead, call)

    def pop(self) -> Call:
        """The next to be served. Raises IndexError when nobody waits."""
        for _ in TURNS:
            line = self._lines[TURNS[self._turn]]
            self._turn = (self._turn + 1) % len(TURNS)
            if line:
                return line.popleft()
        raise IndexError("nobody waits")

    def remove(self, call: Call) -> None:
        """Leave the queue. Raises ValueError for a call that does not wait."""
        self._lines[call.priority].remove(call)

    def remove_all(self, calls: Sequence[Call]) -> None:
        """Those of `calls` that wait leave the queue."""
        leaving = set(calls)
        for line in self._lines:
            staying = [call for call in line if call not in leaving]
            line.clear()
            line.extend(staying)

    def join(self, calls: Sequence[Call]) -> None:
        """Calls from another line take the places they had there. Each priority comes in order."""
        for priority, line in zip(Priority, self._lines, strict=True):
            coming = [call for call in calls if call.priority is priority]
            merged = list(merge(line, coming, key=lambda call: call.place))
            line.clear()
            line.extend(merged)

    def clear(self) -> list[Call]:
        """Everybody leaves."""
        calls = list(self)
        for line in self._lines:
            line.clear()
        return calls

    def oldest_s(self) -> float:
        """When the call waiting for longest came; infinite when nobody waits."""
        return min((line[0].arrived_s for line in self._lines if line), default=float("inf"))
