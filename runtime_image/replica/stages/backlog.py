"""What the loop has ready for the worker thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from runtime_image.replica.intake import Job
from runtime_image.replica.stages.decoding import Decoded


@dataclass(slots=True, eq=False)
class Entry:
    """A job for the worker, which decodes it where `decoded` is None. `is_marked`: the gateway
    was told that it has started."""

    job: Job
    decoded: Decoded | None = None
    is_marked: bool = False


class Backlog:
    """Entries in order, filled and withdrawn by other threads than the one that takes them.

    It also knows whether the worker is at work, because that must change together with what there
    is to take: whoever adds something either finds it at work, and it will look again, or wakes it.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._lock = threading.Lock()
        self.is_worked = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> Job | None:
        """The job whose turn is next."""
        with self._lock:
            return self._entries[0].job if self._entries else None

    def add(self, entries: Iterable[Entry]) -> None:
        """Append what is to be run."""
        with self._lock:
            self._entries.extend(entries)

    def begin(self, most: int) -> list[Entry]:
        """What the worker must be woken for, since it is not at work; it then counts as being."""
        with self._lock:
            return [] if self.is_worked else self._take(most)

    def take(self, most: int) -> list[Entry]:
        """What to run next, at most `most`, and one that must be alone comes alone; where there is
        nothing, or `most` is 0, the worker is no longer at work."""
        with self._lock:
            return self._take(most)

    def _take(self, most: int) -> list[Entry]:
        taken: list[Entry] = []
        while self._entries and len(taken) < most:
            is_alone = self._entries[0].job.alone
            if is_alone and taken:
                break
            taken.append(self._entries.popleft())
            if is_alone:
                break
        self.is_worked = bool(taken)
        return taken

    def withdraw(self, job: Job) -> bool:
        """Take `job` out again; False where its run has begun or it is still being decoded."""
        with self._lock:
            for entry in self._entries:
                if entry.job is job:
                    self._entries.remove(entry)
                    return True
            return False

    def clear(self) -> list[Job]:
        """Take everything out again but what is marked: that counts as begun."""
        with self._lock:
            jobs = [entry.job for entry in self._entries if not entry.is_marked]
            self._entries = deque(entry for entry in self._entries if entry.is_marked)
            return jobs
