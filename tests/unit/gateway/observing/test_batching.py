"""Tests of the batches that carry request records to a writer thread."""

from __future__ import annotations

import threading

from gateway.observing.batching import BATCH, BATCHES_MAX, BatchWriter
from gateway.observing.records import RequestRecord
from tests.support.records import RECORD


class RecordingWriter:
    """Writer that records its batches; `gate` blocks it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def write(self, events: list[RequestRecord], left_out: int) -> None:
        """Record the size of the batch."""
        self.gate.wait(10)
        self.batches.append((len(events), left_out))
        self.threads.add(threading.current_thread().name)


def test_events_are_written_in_batches_by_a_thread() -> None:
    """A full batch is written at once, the rest at the next flush or at the end."""
    writer = RecordingWriter()
    log = BatchWriter("access log", writer.write)
    for _ in range(BATCH + 1):
        log.add(RECORD)
    log.flush()
    log.flush()
    log.add(RECORD)
    log.close()

    assert writer.batches == [(BATCH, 0), (1, 0), (1, 0)]
    assert writer.threads == {"access log"}


def test_a_slow_writer_costs_events_not_memory() -> None:
    """Events without room in the queue are dropped and counted."""
    writer = RecordingWriter()
    writer.gate.clear()
    counted: list[int] = []
    log = BatchWriter("access log", writer.write, on_dropped=counted.append)
    for _ in range(BATCHES_MAX + 10):
        log.add(RECORD)
        log.flush()
    writer.gate.set()
    log.close()
    written = sum(count for count, _ in writer.batches)

    assert BATCHES_MAX <= written <= BATCHES_MAX + 2
    assert written + sum(counted) == BATCHES_MAX + 10
    assert counted


def test_a_writer_that_fails_costs_its_batch_only() -> None:
    """After a failed write the next events are written."""
    writer = RecordingWriter()

    def write(events: list[RequestRecord], left_out: int) -> None:
        writer.write(events, left_out)
        if len(writer.batches) == 1:
            raise ZeroDivisionError("a defect")

    log = BatchWriter("access log", write)
    for _ in range(2):
        log.add(RECORD)
        log.flush()
    log.close()

    assert writer.batches == [(1, 0), (1, 0)]
