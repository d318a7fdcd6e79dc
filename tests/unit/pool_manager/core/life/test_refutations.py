"""What follows when a joined run shows that rows mix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Bind, KeepRefutation, StopBatching
from pool_manager.core.state import Replica, Role, State
from tests.support.house import KEY, House

LOADED = events.Loaded("r1", 4, False, 80.0, {"load": 5.0})
REFUTED = events.BatchingRefuted("r1", "rows are lost")


def house(state: State = State.READY, role: Role = "serve", *, batches: bool = True) -> House:
    made = House(state, role)
    made.pool.spec = replace(made.pool.spec, batches=batches)
    return made


def test_the_others_are_told_and_it_is_kept_once() -> None:
    """Whoever says it next says nothing new; one that is coming is told when it has loaded."""
    made = house()
    for id, state in (("r2", State.READY), ("r3", State.DRAINING), ("r4", State.LOADING)):
        made.replicas.add(Replica(id, KEY, "cpu0", "serve", made.now, state), made.now)

    asked = made.on(REFUTED)
    again = made.on(events.BatchingRefuted("r2", "so they are"))
    loaded = made.on(replace(LOADED, id="r4"))

    assert asked == [KeepRefutation(KEY, "rows are lost"), StopBatching("r2"), StopBatching("r3")]
    assert again == []
    assert loaded == [StopBatching("r4")]
    assert made.pool.refuted == "rows are lost"


@pytest.mark.parametrize(
    ("role", "batches"), [("trial", True), ("standby", True), ("serve", False)]
)
def test_only_what_joins_requests_is_believed(role: Role, batches: bool) -> None:
    """A hostile replica can do no more than end the batching of its own revision."""
    made = house(role=role, batches=batches)

    assert made.on(REFUTED) == []
    assert made.pool.refuted == ""


def test_one_that_says_it_again_to_a_new_manager_is_believed() -> None:
    """The earlier one may have ended before it was kept."""
    made = house(State.LOADING)
    made.replica.adopted = True

    assert made.on(replace(LOADED, refuted="rows are lost")) == [
        KeepRefutation(KEY, "rows are lost")
    ]


def test_an_adopted_replica_joins_by_the_rules_of_today() -> None:
    """What it was once told to join may not be joined any more."""
    made = house(State.STARTING, batches=False)
    made.on(events.Greeted("r1", {}, loaded=True))

    assert made.on(LOADED) == [StopBatching("r1")]


def test_a_new_replica_knows_by_its_model() -> None:
    """Nothing has to be said that stands in what it is bound to."""
    made = house(State.STARTING, batches=False)

    assert made.on(events.Greeted("r1", {})) == [Bind("r1", KEY)]
    assert made.on(LOADED) == []
