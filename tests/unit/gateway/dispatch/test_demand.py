"""Tests of the partial demand reports between two full ones."""

from __future__ import annotations

from gateway.dispatch.demand import DemandReports
from registry.exchange import Load

A, B, C = "default/a@1", "default/b@1", "default/c@1"
NOTHING, BUSY, WAITS = Load(0, 0, 0.0), Load(0, 1, 0.0), Load(1, 0, 0.0)


class Reporting:
    """Demand reports over loads that a test sets; `warm` are the pools with a replica."""

    def __init__(self, **loads: Load) -> None:
        self.loads = {f"default/{name}@1": load for name, load in loads.items()}
        self.warm: set[str] = set()
        self.reports = DemandReports(
            lambda key: self.loads.get(key, NOTHING), lambda key: key not in self.warm
        )


def test_a_partial_report_names_pools_that_fell_idle_once() -> None:
    """A pool that fell idle is reported once; a busy pool is not."""
    reporting = Reporting(a=BUSY, b=BUSY)
    reporting.reports.full({A: BUSY, B: BUSY})
    del reporting.loads[A]
    reporting.loads[C] = WAITS
    for key in (A, B):
        assert not reporting.reports.on_ended(key)

    assert reporting.reports.partial([C]) == {A: NOTHING, C: WAITS}
    assert reporting.reports.partial([C]) == {C: WAITS}


def test_a_pool_reported_as_waiting_is_reported_when_idle() -> None:
    """A pool that was reported as waiting and has been served since is reported as idle."""
    reporting = Reporting(c=WAITS)
    assert reporting.reports.partial([C]) == {C: WAITS}
    reporting.loads = {A: WAITS}
    reporting.reports.on_ended(C)

    assert reporting.reports.partial([A]) == {A: WAITS, C: NOTHING}


def test_a_last_answer_is_reported_while_a_pool_starves() -> None:
    """Falling idle is reported at once only while another pool waits without a replica."""
    reporting = Reporting(a=BUSY, c=WAITS)
    assert not reporting.reports.on_ended(B)

    reporting.reports.on_held(C)
    assert not reporting.reports.on_ended(A)
    del reporting.loads[A]
    assert reporting.reports.on_ended(A)
    reporting.warm = {C}
    assert not reporting.reports.on_ended(A)
    reporting.warm = set()
    reporting.reports.on_held(C)
    del reporting.loads[C]
    assert not reporting.reports.on_ended(A)


def test_an_end_costs_the_same_however_many_pools_starve() -> None:
    """Each end looks up the load of few pools; a pool that starves no more is dropped once, and the
    last starving one is still found."""
    keys = [f"default/f{number}@1" for number in range(1000)]
    looked: list[str] = []

    def load(key: str) -> Load:
        looked.append(key)
        return WAITS if key in waiting else NOTHING

    waiting = set(keys)
    reports = DemandReports(load, lambda _: True)
    for key in keys:
        reports.on_held(key)
    reports.full(dict.fromkeys([*keys, A], WAITS))
    for _ in range(100):
        assert reports.on_ended(A)
        assert reports.partial([A]) == {A: NOTHING}
    assert len(looked) < 1000

    waiting = {keys[-1]}
    assert reports.on_ended(A)
    looked.clear()
    assert reports.on_ended(A)
    assert len(looked) < 5
    waiting.clear()
    assert not reports.on_ended(A)
