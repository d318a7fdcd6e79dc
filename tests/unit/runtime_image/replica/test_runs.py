"""Counts of runs by batch size in a replica."""

from __future__ import annotations

from threading import Thread

from runtime_image.contract.link import RUN_NUMBER_MAX, RUN_SIZES_MAX
from runtime_image.link.run_counts import RunCount, unpack_runs
from runtime_image.replica.runs import RunCounts


def test_runs_add_up_by_size() -> None:
    """Each size has its own runs and times, in nanoseconds, by rising rows."""
    runs = RunCounts()
    for rows in (4, 1, 4):
        runs.count(rows, 1, 20, 300)
    assert unpack_runs(runs.report()) == [
        RunCount(1, 1, 1_000, 20_000, 300_000),
        RunCount(4, 2, 2_000, 40_000, 600_000),
    ]


def test_a_report_without_news_is_empty() -> None:
    """An idle replica's PONG has no body; the next run brings all numbers again."""
    runs = RunCounts()
    assert runs.report() == b""
    runs.count(1, 0, 0, 0)
    assert runs.report()
    assert runs.report() == b""
    runs.count(2, 0, 0, 0)
    assert [one.rows for one in unpack_runs(runs.report())] == [1, 2]


def test_a_new_manager_is_told_everything() -> None:
    """What an earlier manager was told is repeated; where nothing ran, nothing is."""
    runs = RunCounts()
    runs.repeat()
    assert runs.report() == b""
    runs.count(1, 0, 0, 0)
    told = runs.report()
    runs.repeat()
    assert runs.report() == told


def test_sizes_are_bounded() -> None:
    """Sizes beyond the limit are counted together: a client chooses the rows of its request."""
    runs = RunCounts()
    for rows in range(1, 3 * RUN_SIZES_MAX):
        runs.count(rows, 0, 0, 0)
    other, *own = unpack_runs(runs.report())
    assert other[:2] == (0, 2 * RUN_SIZES_MAX - 1)
    assert [one.rows for one in own] == list(range(1, RUN_SIZES_MAX + 1))


def test_numbers_stay_at_their_limit() -> None:
    """A number that has grown too large is reported as the largest that a manager accepts."""
    runs = RunCounts()
    runs.count(1, 2**62, 0, 0)
    assert unpack_runs(runs.report()) == [RunCount(1, 1, RUN_NUMBER_MAX, 0, 0)]


def test_threads_lose_no_count() -> None:
    """The loop and the worker thread count at the same time."""
    runs = RunCounts()

    def count() -> None:
        for _ in range(2000):
            runs.count(1, 1, 1, 1)

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unpack_runs(runs.report()) == [RunCount(1, 8000, *[8_000_000] * 3)]
