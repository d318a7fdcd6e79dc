"""One event per request, written in batches by a thread: the loop only appends to a list."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

import structlog

from gateway.answers.receipt import Receipt

log = structlog.get_logger()

BATCH: Final = 256
"""Events that are handed over at once when they come fast; slower ones wait for `flush`."""
BATCHES_MAX: Final = 64
"""Batches that may wait for a writer that is slow; those beyond are counted and left out."""
CLOSE_S: Final = 5.0
"""How long a writer may hold up a shutdown."""


class AccessEvent(NamedTuple):
    """What became of one request to a function. `at_s` is Unix seconds, `replica` "" where none
    answered."""

    at_s: float
    function: str
    revision: str
    replica: str
    outcome: str
    ms: float
    queue_ms: float = 0.0
    is_cold: bool = False


def access_event(
    at_s: float, about: tuple[str, str], outcome: str, receipt: Receipt | None, ms: float
) -> AccessEvent:
    """The event of a request that took `ms`. `about` are function and revision as they were asked
    for; `receipt` knows better where a replica answered."""
    function, revision = about
    if receipt is None:
        return AccessEvent(at_s, function, revision, "", outcome, ms)
    return AccessEvent(
        at_s,
        function,
        receipt.revision,
        receipt.replica,
        outcome,
        ms,
        receipt.queue_ms,
        receipt.is_cold,
    )


class AccessLog:
    """`write(events, left_out)` is called in a thread of its own; what it raises is its own
    business and ends nothing."""

    def __init__(self, write: Callable[[list[AccessEvent], int], None]) -> None:
        self._write = write
        self._events: list[AccessEvent] = []
        self._left_out = 0
        self.on_left_out: Callable[[int], None] = lambda _count: None
        """Told of events that nobody will read."""
        self._waiting: SimpleQueue[tuple[list[AccessEvent], int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def note(self, event: AccessEvent) -> None:
        """Keep an event; it is written soon."""
        self._events.append(event)
        if len(self._events) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what there is; to be called a few times a second."""
        events, self._events = self._events, []
        if not events:
            return
        if self._waiting.qsize() >= BATCHES_MAX:
            self._left_out += len(events)
            self.on_left_out(len(events))
            return
        self._waiting.put((events, self._left_out))
        self._left_out = 0

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self.flush()
        self._waiting.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            try:
                self._write(*batch)
            except Exception:  # what was lost is lost; the next events are not
                log.exception("access events could not be written")
