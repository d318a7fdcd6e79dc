"""What is known of requests, handed in batches to a thread: the loop only appends to a list."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import structlog

log = structlog.get_logger()

BATCH: Final = 256
"""Records that are handed over at once when they come fast; slower ones wait for `flush`."""
BATCHES_MAX: Final = 64
"""Batches that may wait for a writer that is slow; those beyond are counted and left out."""
CLOSE_S: Final = 5.0
"""How long a writer may hold up a shutdown."""

Record = TypeVar("Record")
Write = Callable[[list[Record], int], None]
"""Takes records, and how many were left out before them."""


class BatchWriter(Generic[Record]):
    """`write` is called in a thread of its own, called `name`; what it raises is its own business
    and ends nothing. `ended` is called there at the end."""

    def __init__(
        self,
        name: str,
        write: Write[Record],
        *,
        batches_max: int = BATCHES_MAX,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._write = write
        self._batches_max = batches_max
        self._ended = ended
        self._records: list[Record] = []
        self._left_out = 0
        self.on_left_out: Callable[[int], None] = lambda _count: None
        """Told of records that nobody will see."""
        self._waiting: SimpleQueue[tuple[list[Record], int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Keep a record; it is written soon."""
        self._records.append(record)
        if len(self._records) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what there is; to be called a few times a second."""
        records, self._records = self._records, []
        if not records:
            return
        if self._waiting.qsize() >= self._batches_max:
            self._left_out += len(records)
            self.on_left_out(len(records))
            return
        self._waiting.put((records, self._left_out))
        self._left_out = 0

    def close(self) -> None:
        """Write what is left, and end the thread; a writer that takes too long is left behind."""
        self.flush()
        self._waiting.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            try:
                self._write(*batch)
            except Exception:  # what was lost is lost; the next records are not
                log.exception("records of requests could not be written", to=self._name)
        if self._ended is not None:
            self._ended()
