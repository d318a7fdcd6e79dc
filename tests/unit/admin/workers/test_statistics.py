"""Statistics of several workers."""

from __future__ import annotations

import os
from collections.abc import Callable

from admin.workers.shared_counters import CounterReader, open_writer
from admin.workers.statistics import RevisionPage
from gateway.metrics.revisions import RevisionCounts, RevisionNumbers
from registry.catalog import Change

POOL = "default/f@1"


class Counting:
    """The numbers of one worker, in the file that the supervisor reads."""

    def __init__(self) -> None:
        self.reader = CounterReader(records_max=256)
        self.writer = open_writer(os.dup(self.reader.descriptor))
        self.reader.close_descriptor()
        self.counts = RevisionCounts(lambda _namespace, _name: True, self.writer)


def page(is_deployed: Callable[[str, str], bool] = lambda _namespace, _ref: True) -> RevisionPage:
    """Return the numbers of no worker yet."""
    return RevisionPage(is_deployed)


def test_numbers_survive_their_worker() -> None:
    """The sum never falls: neither when a worker ends, nor when its successor begins at zero."""
    seen, workers = page(), [Counting(), Counting()]
    for name, worker in enumerate(workers):
        seen.add_worker(str(name), worker.reader)
        worker.counts.count_failure(POOL, 1.0)
    assert seen.read() == {POOL: RevisionNumbers(fail=2, fail_s=2.0)}

    seen.remove_worker("0")
    assert seen.read() == {POOL: RevisionNumbers(fail=2, fail_s=2.0)}

    successor = Counting()
    seen.add_worker("2", successor.reader)
    successor.counts.count_failure(POOL, 1.0)
    seen.remove_worker("1")
    seen.remove_worker("2")
    assert seen.read() == {POOL: RevisionNumbers(fail=3, fail_s=3.0)}


def test_a_removed_revision_is_forgotten() -> None:
    """Numbers of ended workers go with their revision, and are not kept for one already gone."""
    seen, worker, late = page(lambda _namespace, ref: ref != "late@1"), Counting(), Counting()
    seen.add_worker("0", worker.reader)
    for pool in (POOL, "default/f@2", "default/f2@1", "default/late@1"):
        worker.counts.count_failure(pool, 1.0)
    seen.remove_worker("0")
    assert set(seen.read()) == {POOL, "default/f@2", "default/f2@1"}
    seen.on_change(Change("put", "default", "f", None, None, (2,)))
    assert set(seen.read()) == {"default/f@2", "default/f2@1"}
    seen.on_change(Change("remove", "default", "f", None, None))
    assert set(seen.read()) == {"default/f2@1"}
    late.reader.close()
