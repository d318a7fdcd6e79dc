"""Who may be killed, and when."""

from __future__ import annotations

from typing import Any

from tests.chaos.killing import Kills


def replica(id: str, state: str, pool: str = "f") -> dict[str, Any]:
    """A replica as the admin API lists it."""
    return {"id": id, "state": state, "pool": pool}


def test_starts_of_one_function_are_spared_after_some() -> None:
    """Two starts in a row, then no more until it serves; others are not spared with it."""
    kills = Kills(starts_max=2)
    for id in ("a", "b"):
        [victim] = kills.eligible([replica(id, "starting")]).values()
        kills.killed(victim)
    spared = kills.eligible([replica("c", "loading"), replica("d", "starting", "g")])
    serving = kills.eligible([replica("c", "ready")])
    again = kills.eligible([replica("e", "starting")])

    assert list(spared) == ["d"]
    assert list(serving) == ["c"]
    assert list(again) == ["e"]
    assert kills.count == 2
    assert kills.states == {"starting": 2}


def test_kills_follow_the_answers() -> None:
    """As many as starts in a row at once, then one for every few answers."""
    kills = Kills(starts_max=1, answers_each=10)
    first = kills.is_due(0)
    kills.killed(replica("a", "ready"))

    assert first
    assert not kills.is_due(9)
    assert kills.is_due(10)
