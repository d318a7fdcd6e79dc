"""Which pools are reported to the manager between two full reports."""

from __future__ import annotations

from gateway.dispatch.demand import DemandReports
from registry.exchange import Load

A, B, C = "default/a@1", "default/b@1", "default/c@1"
NOTHING, BUSY, WAITS = Load(0, 0, 0.0), Load(0, 1, 0.0), Load(1, 0, 0.0)


class Reporting:
    """Reports over loads that a test sets; `warm` are the pools with a replica."""

    def __init__(self, **loads: Load) -> None:
        self.loads = {f"default/{name}@1": load for name, load in loads.items()}
        self.warm: set[str] = set()
        self.reports = DemandReports(
            lambda key: self.loads.get(key, NOTHING), lambda key: key not in self.warm
        )


def test_an_edge_names_who_has_fallen_idle() -> None:
    """Once: the manager knows it from then on. Who is still busy is not named."""
    reporting = Reporting(a=BUSY, b=BUSY)
    reporting.reports.full({A: BUSY, B: BUSY})
    del reporting.loads[A]
    reporting.loads[C] = WAITS
    for key in (A, B):
        assert not reporting.reports.on_ended(key)

    assert reporting.reports.partial([C]) == {A: NOTHING, C: WAITS}
    assert reporting.reports.partial([C]) == {C: WAITS}


def test_what_an_edge_said_is_remembered() -> None:
    """Who was named as waiting and is served since has fallen idle, too."""
    reporting = Reporting(c=WAITS)
    assert reporting.reports.partial([C]) == {C: WAITS}
    reporting.loads = {A: WAITS}
    reporting.reports.on_ended(C)

    assert reporting.reports.partial([A]) == {A: WAITS, C: NOTHING}


def test_a_last_answer_is_news_while_somebody_waits() -> None:
    """Not while the pool has more to do, and not once the one who waited has a replica, or has
    left."""
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
    """Loads are looked up for a handful of pools at each end; what starves no more is forgotten
    once, and the last one that does is found."""
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
