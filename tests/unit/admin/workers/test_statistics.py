"""Statistics of several workers."""

from __future__ import annotations

import os
from collections.abc import Callable

from admin.workers.shared_counters import CounterReader, open_writer
from admin.workers.statistics import RevisionPage
from gateway.metrics.revisions import RevisionCounts, RevisionNumbers
from gateway.replies import Receipt
from registry.catalog import Change
from runtime_image.link.meta import AnswerMeta

POOL = "default/f@1"
RECEIPT = Receipt(
    "f@1", "r", ("cpu:0",), 1.0, {}, False, AnswerMeta("application/json", 0, 0, 0, 0, 1)
)


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
        seen.add(str(name), worker.reader)
        worker.counts.count_failure(POOL, 1.0)
    assert seen.numbers() == {POOL: RevisionNumbers(fail=2, fail_s=2.0)}

    seen.remove("0")
    assert seen.numbers() == {POOL: RevisionNumbers(fail=2, fail_s=2.0)}

    successor = Counting()
    seen.add("2", successor.reader)
    successor.counts.count_failure(POOL, 1.0)
    seen.remove("1")
    seen.remove("2")
    assert seen.numbers() == {POOL: RevisionNumbers(fail=3, fail_s=3.0)}


def test_a_removed_revision_is_forgotten() -> None:
    """Numbers of ended workers go with their revision, and are not kept for one already gone."""
    seen, worker, late = page(lambda _namespace, ref: ref != "late@1"), Counting(), Counting()
    seen.add("0", worker.reader)
    for pool in (POOL, "default/f@2", "default/f2@1", "default/late@1"):
        worker.counts.count_failure(pool, 1.0)
    seen.remove("0")
    assert set(seen.numbers()) == {POOL, "default/f@2", "default/f2@1"}
    seen.on_change(Change("put", "default", "f", None, None, (2,)))
    assert set(seen.numbers()) == {"default/f@2", "default/f2@1"}
    seen.on_change(Change("remove", "default", "f", None, None))
    assert set(seen.numbers()) == {"default/f2@1"}
    late.reader.close()


def test_the_last_success_is_the_latest() -> None:
    """Of the times of several gateways the latest is shown; all other numbers are summed up."""
    seen = page()
    for name, at_s in enumerate((20.0, 30.0, 10.0)):
        worker = Counting()
        seen.add(str(name), worker.reader)
        worker.counts.count_answer(POOL, 0.5, RECEIPT, at_s)
    seen.remove("1")

    assert seen.numbers()[POOL][:3] == (3, 3, 1.5)
    assert seen.numbers()[POOL].last_s == 30.0
