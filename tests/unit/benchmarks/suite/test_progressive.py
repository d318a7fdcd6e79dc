"""Latencies of a load, second by second."""

from __future__ import annotations

import pytest

from benchmarks.loading.call import Loaded
from benchmarks.measuring.record import Record
from benchmarks.suite.progressive import (
    BEFORE_WORST,
    USUAL_SECOND,
    WORST,
    WORST_SECOND,
    add_seconds,
    by_second,
)


def load(*ended: tuple[float, float]) -> Loaded:
    return Loaded(len(ended), 5.0, 6.0, 8.0, 0, 5000.0, ended)


def test_answers_belong_to_the_second_in_which_they_came() -> None:
    """Seconds count from the first answer. A second without answers is present but empty; an
    incomplete last one is dropped."""
    loaded = load((1.0, 1000.0), (1.1, 5.0), (1.9, 6.0), (3.5, 7.0), (4.2, 8.0))

    assert by_second(loaded, 4.5) == [[5.0, 6.0], [], [7.0]]


def test_calls_held_by_the_cold_start_are_excluded() -> None:
    """The first call and those held with it are excluded."""
    assert by_second(load((1.0, 1000.0), (1.5, 1499.0), (1.75, 250.0)), 2.0) == [[250.0]]


def test_a_load_without_answers_has_no_seconds() -> None:
    """A load without answers has no seconds, because there is no first answer."""
    assert by_second(load(), 4.0) == []


def test_the_worst_second_is_reported_with_the_one_before() -> None:
    """Seconds without an answer are ignored."""
    record = Record()
    add_seconds(record, [[5.0, 6.0], [7.0], [], [30.0], [8.0]])

    assert record.of(WORST) == {USUAL_SECOND: [7.5], BEFORE_WORST: [7.0], WORST_SECOND: [30.0]}


def test_the_worst_second_may_be_the_first_that_counts() -> None:
    """If the worst second is the first, it also stands for the one before."""
    record = Record()
    add_seconds(record, [[30.0], [7.0]])

    assert record.of(WORST, [BEFORE_WORST, WORST_SECOND]) == {
        BEFORE_WORST: [30.0],
        WORST_SECOND: [30.0],
    }


def test_a_load_without_answers_has_no_worst_second() -> None:
    """A load without enough answers is an error."""
    with pytest.raises(RuntimeError, match="expected answers in most seconds, got 1 with any"):
        add_seconds(Record(), [[], [7.0]])
