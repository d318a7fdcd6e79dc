"""Numbers of requests by revision."""

from __future__ import annotations

import pytest

from gateway.metrics import revisions
from gateway.metrics.counters import LocalStore
from gateway.metrics.revisions import NAMES, RevisionCounts, RevisionNumbers
from gateway.replies import Receipt
from registry.catalog import Change
from runtime_image.link.meta import AnswerMeta

META = AnswerMeta("application/json", 10, 2000, 300, 40, 8, 3)
POOL = "default/f@1"


def receipt(queue_ms: float = 0.5) -> Receipt:
    """Return the receipt of three rows in a batch of eight."""
    return Receipt("f@1", "r1", ("cpu:0",), queue_ms, {}, False, META)


def counts() -> RevisionCounts:
    """Return counts of a server whose functions all exist, except `gone`."""
    return RevisionCounts(lambda _namespace, name: name != "gone")


def changed(name: str, *numbers: int) -> Change:
    """Return the change after which a function has these revisions."""
    return Change("put" if numbers else "remove", "default", name, None, None, numbers)


def test_an_answer_counts_with_its_own_rows_and_all_its_waiting() -> None:
    """Rows are those of the request, not of its batch; the wait in the replica is queueing too."""
    made = counts()
    made.count_answer(POOL, 0.25, receipt(), 100.0)
    made.count_answer(POOL, 0.5, receipt(1.5), 200.0)
    assert made.read() == {
        POOL: RevisionNumbers(
            success=2,
            rows=6,
            success_s=0.75,
            queue_ms=6.0,
            input_us=20,
            infer_us=600,
            output_us=80,
            last_s=200.0,
        )
    }


def test_a_failure_changes_no_number_of_successes() -> None:
    """A failed request counts as a failure with its time, and as nothing else."""
    made = counts()
    made.count_failure(POOL, 2.0)
    assert made.read() == {POOL: RevisionNumbers(fail=1, fail_s=2.0)}


def test_a_removed_revision_leaves_nothing() -> None:
    """Its places are free again, and the other revisions keep their numbers."""
    store = LocalStore()
    made = RevisionCounts(lambda _namespace, _name: True, store)
    for pool in (POOL, "default/f@2", "default/f2@1"):
        made.count_failure(pool, 1.0)
    made.on_change(changed("f", 2))
    assert set(made.read()) == {"default/f@2", "default/f2@1"}
    assert len(store._free) == len(NAMES)
    made.on_change(changed("f"))
    made.on_change(changed("f2"))
    made.on_change(changed("never-called", 1))
    assert made.read() == {}
    made.count_failure(POOL, 1.0)
    assert made.read() == {POOL: RevisionNumbers(fail=1, fail_s=1.0)}


def test_a_late_answer_of_a_removed_function_is_not_counted() -> None:
    """It would create numbers that nothing removes any more."""
    made = counts()
    made.count_answer("default/gone@1", 1.0, receipt(), 1.0)
    made.count_failure("default/gone@1", 1.0)
    assert made.read() == {}


def test_revisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those called first have numbers; a removed one makes room."""
    monkeypatch.setattr(revisions, "REVISIONS_MAX", 2)
    made = counts()
    for name in ("a", "b", "c"):
        made.count_failure(f"default/{name}@1", 1.0)
    assert set(made.read()) == {"default/a@1", "default/b@1"}
    made.on_change(changed("a"))
    made.count_failure("default/c@1", 1.0)
    assert set(made.read()) == {"default/b@1", "default/c@1"}
