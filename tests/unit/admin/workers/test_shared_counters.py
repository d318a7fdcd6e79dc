"""Tests of counters in shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from admin.workers import shared_counters
from admin.workers.shared_counters import (
    CounterReader,
    CounterWriter,
    OwnCounters,
    Sample,
    open_writer,
    summed,
)
from gateway.metrics.counters import SPARE, CounterFamily, HistogramFamily

LABELS = ("namespace", "function")
F = Sample("n_total", ("namespace", "default", "function", "f"))
G = Sample("n_total", ("namespace", "default", "function", "g"))


@pytest.fixture
def counters() -> Iterator[CounterReader]:
    """A reader with room for three numbers."""
    counters = CounterReader(records_max=4)
    yield counters
    counters.close()


@pytest.fixture
def cells(counters: CounterReader) -> Iterator[CounterWriter]:
    """The worker's writer on the same memory."""
    cells = open_writer(os.dup(counters.descriptor))
    counters.close_descriptor()
    yield cells
    cells.close()


def take(cells: CounterWriter | OwnCounters, function: str, name: str = "n_total") -> int:
    return cells.allocate(name, LABELS, ("default", function))


def test_numbers_are_read_from_the_other_end(counters: CounterReader, cells: CounterWriter) -> None:
    """The reader sees each number, by name and labels, as it is now."""
    place = take(cells, "f")
    take(cells, "g")
    cells.values[place] = 2.5

    assert counters.read() == {F: 2.5, G: 0.0}
    assert F.by_label == {"namespace": "default", "function": "f"}
    assert F.owner == ("default", "f")


def test_numbers_outlive_their_worker(counters: CounterReader) -> None:
    """Numbers stay readable after the worker's end."""
    cells = open_writer(os.dup(counters.descriptor))
    counters.close_descriptor()
    cells.values[take(cells, "f")] = 7.0
    cells.close()

    assert counters.read() == {F: 7.0}


def test_numbers_that_are_given_back_make_room(
    counters: CounterReader, cells: CounterWriter
) -> None:
    """A freed record can be used again, and begins at 0."""
    place = take(cells, "f")
    cells.values[place] = 7.0
    take(cells, "g")
    take(cells, "h")
    cells.free(place)
    assert F not in counters.read()
    take(cells, "f")

    assert counters.read()[F] == 0.0
    assert len(counters.read()) == 3


def test_functions_that_come_and_go_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded while functions come and go, and the numbers of remaining functions are
    kept."""
    monkeypatch.setattr(shared_counters, "KNOWN_SPARE", 8)
    counters = CounterReader(records_max=2**16)
    cells = open_writer(os.dup(counters.descriptor))
    counters.close_descriptor()
    families = [
        CounterFamily("n", "text", LABELS, cells),
        HistogramFamily("s", "text", LABELS, (1,), cells),
    ]
    lives = families[0].of("default", "f")
    for number in range(5_000):
        gone = ("default", f"g{number}")
        families[0].of(*gone).inc(5.0)
        families[1].of(*gone).observe(0.5)
        lives.inc(1.0)
        if number % 1_000 == 0:
            assert counters.read()[F] == number + 1
        for family in families:
            family.remove(*gone)

    assert counters.read() == {F: 5_000.0}
    assert cells._used < SPARE + 100
    assert len(counters._known) < 20
    cells.close()
    counters.close()


def test_a_number_without_room_is_not_shown(counters: CounterReader, cells: CounterWriter) -> None:
    """A number without room is counted in a dummy record, so that the request is not affected."""
    for name in "fgh":
        take(cells, name)
    place = take(cells, "i")
    cells.values[place] = 5.0

    assert set(counters.read().values()) == {0.0}
    assert take(cells, "x" * 300) == place


def test_a_record_that_is_written_just_now_is_left_out(
    counters: CounterReader, cells: CounterWriter
) -> None:
    """A record whose key does not match its checksum is being written and is left out."""
    place = take(cells, "f")
    take(cells, "g")
    with cells._view.cast("B") as raw:
        raw[place * 8 + 14] ^= 1

    assert counters.read() == {G: 0.0}


@pytest.fixture
def counting() -> Iterator[tuple[CounterReader, CounterWriter]]:
    """A reader with room for several families, and the worker's writer."""
    counters = CounterReader(records_max=64)
    cells = open_writer(os.dup(counters.descriptor))
    counters.close_descriptor()
    yield counters, cells
    cells.close()
    counters.close()


def test_counters_and_histograms_count_in_cells(
    counting: tuple[CounterReader, CounterWriter],
) -> None:
    """Counters and histograms write each number to shared memory; buckets are not cumulative
    there."""
    counters, cells = counting
    counter = CounterFamily("n", "text", LABELS, cells).of("default", "f")
    child = HistogramFamily("s", "text", LABELS, (1, 2), cells).of("default", "f")
    counter.inc(1.0)
    counter.inc(2.0)
    child.observe(1.5)

    found = counters.read()
    labels = ("namespace", "default", "function", "f")
    assert found[F] == counter.get() == 3.0
    assert found[Sample("s_sum", labels)] == 1.5
    assert found[Sample("s_bucket", (*labels, "le", "2.0"))] == 1.0
    assert found[Sample("s_bucket", (*labels, "le", "1.0"))] == 0.0


def test_readings_are_added_up() -> None:
    """Readings are summed over workers, number by number."""
    assert summed([{F: 1.0}, {F: 2.0, G: 3.0}, {}]) == {F: 3.0, G: 3.0}


def test_a_gateway_in_the_servers_process_counts_in_a_list() -> None:
    """Its numbers are read as those of a file, in their order; a freed place has no number until it
    is used again."""
    own = OwnCounters()
    first, second = take(own, "a"), take(own, "b")
    own.values[first] += 2.0

    a, b = (Sample("n_total", ("namespace", "default", "function", one)) for one in "ab")
    assert own.read() == {a: 2.0, b: 0.0}
    assert own.read(1) == {a: 2.0}

    own.free(first)
    assert own.read() == {b: 0.0}
    for number in range(SPARE):
        own.free(take(own, f"c{number}"))
    again = take(own, "a")
    assert again == first
    assert own.read() == {b: 0.0, a: 0.0}
    assert second != first
