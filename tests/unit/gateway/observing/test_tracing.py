"""Tests of which requests are traced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from gateway.observing.batching import BATCH
from gateway.observing.records import RequestRecord, parse_traceparent
from gateway.observing.tracing import BATCHES_MAX, Tracer
from tests.support.records import TRACED

ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Zeros(Random):
    """Nothing but zeros."""

    def getrandbits(self, k: int, /) -> int:
        """The unlikeliest of all numbers."""
        return 0


@contextmanager
def tracing(ratio: float, random: Random | None = None) -> Iterator[Tracer]:
    """A tracer whose records nobody wants."""
    tracer = Tracer(ratio, lambda _records, _left_out: None, random or Random(7))
    yield tracer
    tracer.close()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_client_decides_where_it_traces(ratio: float) -> None:
    """Whatever our own share is."""
    with tracing(ratio) as tracer:
        trace = tracer.begin(f"00-{ID}-{PARENT}-01")
        assert trace is not None
        assert (trace.trace_id, trace.parent_id) == (ID, PARENT)
        assert tracer.begin(f"00-{ID}-{PARENT}-00") is None


def test_of_all_other_requests_a_share_is_traced() -> None:
    """None of 0, all of 1."""
    for ratio, least, most in ((0.0, 0, 0), (0.25, 200, 300), (1.0, 1000, 1000)):
        with tracing(ratio) as tracer:
            traced = sum(tracer.begin("") is not None for _ in range(1000))
        assert least <= traced <= most


def test_ids_are_never_all_zeros() -> None:
    """The standard has such a trace ignored."""
    with tracing(1.0, Zeros()) as tracer:
        trace = tracer.begin("")
    assert trace is not None
    assert parse_traceparent(trace.traceparent)


def test_records_come_to_a_thread_which_is_told_of_the_end() -> None:
    """After the last of them."""
    seen: list[object] = []

    def write(records: list[RequestRecord], _left_out: int) -> None:
        seen.extend([*records, threading.current_thread().name])

    tracer = Tracer(1.0, write, Random(7), lambda: seen.append("ended"))
    tracer.record(TRACED)
    tracer.close()
    assert seen == [TRACED, "traces", "ended"]


def test_a_collector_that_hangs_costs_little_memory() -> None:
    """A few batches wait, all others are left out."""
    hangs, written = threading.Event(), []

    def write(records: list[RequestRecord], left_out: int) -> None:
        hangs.wait(10)
        written.append((len(records), left_out))

    tracer = Tracer(1.0, write, Random(7))
    for _ in range(100 * BATCH):
        tracer.record(TRACED)
    hangs.set()
    tracer.close()

    assert BATCHES_MAX * BATCH <= sum(count for count, _ in written) <= (BATCHES_MAX + 2) * BATCH
