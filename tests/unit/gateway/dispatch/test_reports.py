"""Which pools the manager is told of between two full reports."""

from __future__ import annotations

from gateway.dispatch.reports import Reports
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

    assert told.reports.edge([C]) == {A: NOTHING, C: WAITS}
    assert told.reports.edge([C]) == {C: WAITS}


def test_what_an_edge_said_is_remembered() -> None:
    """Who was named as waiting and is served since has fallen idle, too."""
    told = Told(c=WAITS)
    assert told.reports.edge([C]) == {C: WAITS}
    told.loads = {A: WAITS}

    assert told.reports.edge([A]) == {A: WAITS, C: NOTHING}


def test_a_last_answer_is_news_while_somebody_waits() -> None:
    """Not while the pool has more to do, and not once the one who waited has a replica, or has
    left."""
    told = Told(a=BUSY, c=WAITS)
    assert not told.reports.is_news(B)

    told.reports.held(C)
    assert not told.reports.is_news(A)
    del told.loads[A]
    assert told.reports.is_news(A)
    told.warm = {C}
    assert not told.reports.is_news(A)
    told.warm = set()
    told.reports.held(C)
    del told.loads[C]
    assert not told.reports.is_news(A)
