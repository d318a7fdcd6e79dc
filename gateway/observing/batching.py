"""Batch writer for records of requests: the event loop only appends to a list, a thread writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import structlog

log = structlog.get_logger()

BATCH: Final = 256
"""Records that form a full batch, which is queued at once; fewer wait for `flush`."""
BATCHES_MAX: Final = 64
"""Max batches that wait for a slow writer; further records are counted and dropped."""
CLOSE_S: Final = 5.0
"""Max seconds that a writer may delay a shutdown."""

Record = TypeVar("Record")
Write = Callable[[list[Record], int], None]
"""Writes records; the number is how many records were dropped before them."""


class BatchWriter(Generic[Record]):
    """Calls `write` in a thread with the name `name`.

    Exceptions from `write` are logged and do not stop the thread.
    """

    def __init__(
        self,
        name: str,
        write: Write[Record],
        *,
        batches_max: int = BATCHES_MAX,
        on_dropped: Callable[[int], None] = lambda _count: None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread.

        `on_dropped(count)` is called in the event loop's thread for dropped records, `on_closed` in
        the writer's thread after the last record.
        """
        self._name = name
        self._write = write
        self._batches_max = batches_max
        self._on_dropped = on_dropped
        self._on_closed = on_closed
        self._records: list[Record] = []
        self._dropped = 0
        self._batches: SimpleQueue[tuple[list[Record], int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Add a record; it is written soon."""
        self._records.append(record)
        if len(self._records) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Queue the collected records; to be called a few times a second."""
        records, self._records = self._records, []
        if not records:
            return
        if self._batches.qsize() >= self._batches_max:
            self._dropped += len(records)
            self._on_dropped(len(records))
            return
        self._batches.put((records, self._dropped))
        self._dropped = 0

    def close(self) -> None:
        """Write the remaining records and end the thread. After CLOSE_S the thread is abandoned."""
        self.flush()
        self._batches.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._write(*batch)
            except Exception:  # these records are lost; continue with the next ones
                log.exception("records of requests could not be written", to=self._name)
        self._on_closed()
