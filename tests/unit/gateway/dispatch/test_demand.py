"""Which pools the manager is told of between two full reports."""

from __future__ import annotations

from gateway.dispatch.demand import Reports
from registry.exchange import Load

A, B, C = "default/a@1", "default/b@1", "default/c@1"
NOTHING, BUSY, WAITS = Load(0, 0, 0.0), Load(0, 1, 0.0), Load(1, 0, 0.0)


class Told:
    """Reports over loads that a test sets; `warm` are the pools with a replica."""

    def __init__(self, **loads: Load) -> None:
        self.loads = {f"default/{name}@1": load for name, load in loads.items()}
        self.warm: set[str] = set()
        self.reports = Reports(
            lambda key: self.loads.get(key, NOTHING), lambda key: key not in self.warm
        )


def test_an_edge_names_who_has_fallen_idle() -> None:
    """Once: the manager knows it from then on. Who is still busy is not named."""
    told = Told(a=BUSY, b=BUSY)
    told.reports.full({A: BUSY, B: BUSY})
    del told.loads[A]
    told.loads[C] = WAITS
    for key in (A, B):
        assert not told.reports.ended(key)

    assert told.reports.edge([C]) == {A: NOTHING, C: WAITS}
    assert told.reports.edge([C]) == {C: WAITS}


def test_what_an_edge_said_is_remembered() -> None:
    """Who was named as waiting and is served since has fallen idle, too."""
    told = Told(c=WAITS)
    assert told.reports.edge([C]) == {C: WAITS}
    told.loads = {A: WAITS}
    told.reports.ended(C)

    assert told.reports.edge([A]) == {A: WAITS, C: NOTHING}


def test_a_last_answer_is_news_while_somebody_waits() -> None:
    """Not while the pool has more to do, and not once the one who waited has a replica, or has
    left."""
    told = Told(a=BUSY, c=WAITS)
    assert not told.reports.ended(B)

    told.reports.held(C)
    assert not told.reports.ended(A)
    del told.loads[A]
    assert told.reports.ended(A)
    told.warm = {C}
    assert not told.reports.ended(A)
    told.warm = set()
    told.reports.held(C)
    del told.loads[C]
    assert not told.reports.ended(A)


def test_an_end_costs_the_same_however_many_pools_starve() -> None:
    """Loads are looked up for a handful of pools at each end; what starves no more is forgotten
    once, and the last one that does is found."""
    keys = [f"default/f{number}@1" for number in range(1000)]
    looked: list[str] = []

    def load(key: str) -> Load:
        looked.append(key)
        return WAITS if key in waiting else NOTHING

    waiting = set(keys)
    reports = Reports(load, lambda _: True)
    for key in keys:
        reports.held(key)
    reports.full(dict.fromkeys([*keys, A], WAITS))
    for _ in range(100):
        assert reports.ended(A)
        assert reports.edge([A]) == {A: NOTHING}
    assert len(looked) < 1000

    waiting = {keys[-1]}
    assert reports.ended(A)
    looked.clear()
    assert reports.ended(A)
    assert len(looked) < 5
    waiting.clear()
    assert not reports.ended(A)
