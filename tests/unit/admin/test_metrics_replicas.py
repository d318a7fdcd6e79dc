"""Tests of replicas on the page."""

from __future__ import annotations

from collections import Counter

from admin.metrics import ReplicaFamilies
from pool_manager.metrics import Counts, Supplied


class Given:
    """What a manager may have counted."""

    waiting_starts = 2

    def __init__(self) -> None:
        self.counted = Counts(
            Counter({("standby", "ready"): 3}), Counter({("serving", "killed"): 1})
        )

    def counts(self) -> Counts:
        return self.counted.copy()

    def supplied(self) -> list[Supplied]:
        return [Supplied("default/a@1", 2, {"ready": 1, "loading": 1})]


def samples(families: ReplicaFamilies) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.collect()
        for sample in family.samples
    }


def test_replicas_are_shown_as_they_were_looked_at() -> None:
    """Supply, starts, failures; later ones are for the next look."""
    given = Given()
    families = ReplicaFamilies(given)
    families.snapshot()
    given.counted.starts["standby", "ready"] += 1

    assert {key: value for key, value in samples(families).items() if value} == {
        ("fngate_pool_wanted_replicas", "default/a@1"): 2,
        ("fngate_pool_replicas", "default/a@1", "ready"): 1,
        ("fngate_pool_replicas", "default/a@1", "loading"): 1,
        ("fngate_waiting_starts",): 2,
        ("fngate_replica_starts_total", "standby", "ready"): 3,
        ("fngate_replica_failures_total", "serving", "killed"): 1,
    }


def test_what_can_be_counted_is_there_from_the_start() -> None:
    """A first failure is a rise from 0, which an alert can see."""
    found = samples(ReplicaFamilies(Given()))

    assert found["fngate_replica_failures_total", "starting", "load"] == 0
    assert found["fngate_replica_starts_total", "trial", "failed"] == 0
    assert found["fngate_evictions_total", "busy"] == 0
    assert found["fngate_cold_starts_total", "failed"] == 0
    assert found["fngate_batching_refuted_total",] == 0
