"""The start queue."""

from __future__ import annotations

from math import inf

from pool_manager.core.start_queue import HOLD_S, Rank, StartPriority, StartQueue

NOW = 100.0


def standing(**turns: StartPriority) -> tuple[StartQueue, dict[str, StartPriority]]:
    """Two at once; these stand in line."""
    starts = StartQueue(2)
    for id in turns:
        starts.enqueue(id)
    return starts, turns


def test_who_has_waited_for_longest_goes_first() -> None:
    """The start that has waited longest is admitted first, and only `at_once` run."""
    starts, turns = standing(
        a=StartPriority(Rank.WAITER, 3.0),
        b=StartPriority(Rank.WAITER, 1.0),
        c=StartPriority(Rank.WAITER, 2.0),
    )

    assert starts.admit(turns.__getitem__, NOW) == ["b", "c"]
    assert starts.admit(turns.__getitem__, NOW) == []
    starts.remove("c")
    assert starts.admit(turns.__getitem__, NOW) == ["a"]


def test_waiters_go_before_floors_and_these_before_standbys() -> None:
    """Priority does not depend on how long a floor or a standby has waited."""
    starts, turns = standing(
        standby=StartPriority(Rank.STANDBY, 1.0),
        floor=StartPriority(Rank.FLOOR, 2.0),
        waiter=StartPriority(Rank.WAITER, 9.0),
    )

    assert starts.admit(turns.__getitem__, NOW) == ["waiter", "floor"]


def test_what_becomes_urgent_goes_first() -> None:
    """A queued floor moves up when calls begin to wait for it."""
    starts, turns = standing(a=StartPriority(Rank.WAITER, 1.0), b=StartPriority(Rank.WAITER, 2.0))
    starts.admit(turns.__getitem__, NOW)
    turns |= {"c": StartPriority(Rank.WAITER, 9.0), "d": StartPriority(Rank.FLOOR, 1.0)}
    for id in ("c", "d"):
        starts.enqueue(id)

    turns["d"] = StartPriority(Rank.WAITER, 3.0)
    starts.remove("a")

    assert starts.admit(turns.__getitem__, NOW) == ["d"]


def test_what_is_over_in_no_time_stands_in_no_line() -> None:
    """A short load neither waits nor takes a place."""
    starts, turns = standing(
        a=StartPriority(Rank.WAITER, 1.0),
        b=StartPriority(Rank.SHORT, 2.0),
        c=StartPriority(Rank.WAITER, 3.0),
    )

    assert starts.admit(turns.__getitem__, NOW) == ["b", "a", "c"]
    turns["d"] = StartPriority(Rank.SHORT, 4.0)
    starts.enqueue("d")
    assert starts.admit(turns.__getitem__, NOW) == ["d"]


def test_what_hangs_holds_nobody_up_for_long() -> None:
    """A start frees its place after HOLD_S, whether it has ended or not."""
    starts, turns = standing(
        a=StartPriority(Rank.WAITER, 1.0),
        b=StartPriority(Rank.WAITER, 2.0),
        c=StartPriority(Rank.WAITER, 3.0),
    )
    starts.admit(turns.__getitem__, NOW)

    assert starts.due_s() == NOW + HOLD_S
    assert starts.admit(turns.__getitem__, NOW + HOLD_S) == ["c"]
    assert starts.due_s() == inf


def test_who_leaves_the_line_is_never_begun() -> None:
    """A removed start is never admitted; removing unknown ids has no effect."""
    starts, turns = standing(a=StartPriority(Rank.WAITER, 1.0), b=StartPriority(Rank.WAITER, 2.0))

    starts.remove("a")
    starts.remove("z")

    assert starts.admit(turns.__getitem__, NOW) == ["b"]
