"""Whose start goes on."""

from __future__ import annotations

from math import inf

from pool_manager.core.start_queue import HOLD_S, Rank, Starts, Turn

NOW = 100.0


def standing(**turns: Turn) -> tuple[Starts, dict[str, Turn]]:
    """Two at once; these stand in line."""
    starts = Starts(2)
    for id in turns:
        starts.ask(id)
    return starts, turns


def test_who_has_waited_for_longest_goes_first() -> None:
    """Only so many at once; the next one when one has ended."""
    starts, turns = standing(
        a=Turn(Rank.WAITER, 3.0), b=Turn(Rank.WAITER, 1.0), c=Turn(Rank.WAITER, 2.0)
    )

    assert starts.begin(turns.__getitem__, NOW) == ["b", "c"]
    assert starts.begin(turns.__getitem__, NOW) == []
    starts.leave("c")
    assert starts.begin(turns.__getitem__, NOW) == ["a"]


def test_waiters_go_before_floors_and_these_before_standbys() -> None:
    """However long a floor or a standby has stood in line."""
    starts, turns = standing(
        standby=Turn(Rank.STANDBY, 1.0), floor=Turn(Rank.FLOOR, 2.0), waiter=Turn(Rank.WAITER, 9.0)
    )

    assert starts.begin(turns.__getitem__, NOW) == ["waiter", "floor"]


def test_what_becomes_urgent_goes_first() -> None:
    """Somebody may call a function whose floor stands in line."""
    starts, turns = standing(a=Turn(Rank.WAITER, 1.0), b=Turn(Rank.WAITER, 2.0))
    starts.begin(turns.__getitem__, NOW)
    turns |= {"c": Turn(Rank.WAITER, 9.0), "d": Turn(Rank.FLOOR, 1.0)}
    for id in ("c", "d"):
        starts.ask(id)

    turns["d"] = Turn(Rank.WAITER, 3.0)
    starts.leave("a")

    assert starts.begin(turns.__getitem__, NOW) == ["d"]


def test_what_is_over_in_no_time_stands_in_no_line() -> None:
    """It neither waits for a place nor takes one."""
    starts, turns = standing(
        a=Turn(Rank.WAITER, 1.0), b=Turn(Rank.SHORT, 2.0), c=Turn(Rank.WAITER, 3.0)
    )

    assert starts.begin(turns.__getitem__, NOW) == ["b", "a", "c"]
    turns["d"] = Turn(Rank.SHORT, 4.0)
    starts.ask("d")
    assert starts.begin(turns.__getitem__, NOW) == ["d"]


def test_what_hangs_holds_nobody_up_for_long() -> None:
    """After its time a start counts no more, whether it has ended or not."""
    starts, turns = standing(
        a=Turn(Rank.WAITER, 1.0), b=Turn(Rank.WAITER, 2.0), c=Turn(Rank.WAITER, 3.0)
    )
    starts.begin(turns.__getitem__, NOW)

    assert starts.due_s() == NOW + HOLD_S
    assert starts.begin(turns.__getitem__, NOW + HOLD_S) == ["c"]
    assert starts.due_s() == inf


def test_who_leaves_the_line_is_never_begun() -> None:
    """Strangers that leave change nothing."""
    starts, turns = standing(a=Turn(Rank.WAITER, 1.0), b=Turn(Rank.WAITER, 2.0))

    starts.leave("a")
    starts.leave("z")

    assert starts.begin(turns.__getitem__, NOW) == ["b"]
