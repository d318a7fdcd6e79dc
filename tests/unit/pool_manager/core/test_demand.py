"""The load of gateway workers, summed."""

from __future__ import annotations

import pytest

from pool_manager.core.demand import DemandTable
from registry.exchange import NOTHING, Demand, Load

A, B = "default/a@1", "default/b@1"


@pytest.fixture
def book() -> DemandTable:
    """A book in which w1 has load for A and B."""
    book = DemandTable()
    book.update(Demand("w1", 1, True, {A: Load(2, 1, 0.5), B: Load(1, 0, 3.0)}), 10.0)
    return book


def test_a_new_book_is_empty() -> None:
    """A new table has no workers, and no pool has load."""
    assert DemandTable().is_empty
    assert DemandTable().load(A) == NOTHING


def test_loads_of_all_workers_are_added(book: DemandTable) -> None:
    """Counts add up, and the oldest wait is the longest of any worker."""
    book.update(Demand("w2", 1, True, {A: Load(1, 1, 4.0)}), 10.0)

    assert Load(3, 2, 4.0) == book.load(A)
    assert {A, B} == book.active()
    assert not book.is_empty


def test_pools_without_load_of_any_worker_are_idle(book: DemandTable) -> None:
    """Load of one worker suffices; pools that no worker has named are idle."""
    book.update(Demand("w2", 1, True, {"default/c@1": Load(1, 0, 0.0)}), 10.0)

    assert book.idle({A, "default/c@1", "default/d@1"}) == {"default/d@1"}
    assert DemandTable().idle({A}) == {A}


def test_a_full_message_replaces_all(book: DemandTable) -> None:
    """Pools that a full message does not name have no demand any more, and are touched."""
    touched = book.update(Demand("w1", 2, True, {A: Load(1, 0, 0.0)}), 11.0)

    assert {A, B} == touched
    assert {A} == book.active()


def test_a_partial_message_leaves_the_rest(book: DemandTable) -> None:
    """Pools that a partial message does not name keep their load; zeros end it."""
    book.update(Demand("w1", 2, False, {B: Load(0, 0, 0.0), "default/c@1": Load(0, 0, 0.0)}), 11.0)

    assert Load(2, 1, 0.5) == book.load(A)
    assert {A} == book.active()


def test_an_old_partial_message_changes_nothing(book: DemandTable) -> None:
    """A partial report older than the last one is ignored, but counts as a sign of life."""
    assert set() == book.update(Demand("w1", 1, False, {A: Load(9, 9, 9.0)}), 12.9)

    assert Load(2, 1, 0.5) == book.load(A)
    assert book.silent_workers(15.0) == []


def test_a_worker_that_counts_anew_is_believed(book: DemandTable) -> None:
    """A full report counts after a reconnect, whatever its sequence number."""
    book.update(Demand("w1", 0, True, {}), 11.0)

    assert set() == book.active()


def test_silence_is_noticed(book: DemandTable) -> None:
    """A worker is silent after more than three seconds without a report, not before."""
    assert book.silent_workers(13.0) == []
    assert book.silent_workers(13.1) == ["w1"]


def test_a_lost_worker_holds_nothing(book: DemandTable) -> None:
    """Removing a worker returns the pools that had load; removing an unknown one returns none."""
    assert {A, B} == book.remove("w1")
    assert set() == book.remove("w1")
    assert book.is_empty


def test_a_pool_is_busy_while_anybody_has_load(book: DemandTable) -> None:
    """A pool is busy while at least one worker has load for it."""
    assert (book.is_busy(A), book.is_busy("default/z@1")) == (True, False)

    book.remove("w1")

    assert not book.is_busy(A)
