"""Tests of the order in which large bodies are checked."""

from __future__ import annotations

from gateway.cold_checks.check_line import CheckLine


def line(most: int, *joins: str) -> tuple[CheckLine[str], list[str | None]]:
    """Return a line that items like "a1" of caller "a" joined, and what each join refused."""
    one: CheckLine[str] = CheckLine(most)
    return one, [one.join(item[0], item) for item in joins]


def order(one: CheckLine[str]) -> str:
    """Return the items in their order, which empties the line."""
    return " ".join(iter(one.next, None))


def test_callers_take_turns() -> None:
    """A caller with many bodies delays its own ones, and each caller's keep their order."""
    one, refused = line(9, "a1", "a2", "a3", "b1", "c1", "b2")

    assert refused == [None] * 6
    assert order(one) == "a1 b1 c1 a2 b2 a3"
    assert (one.count, one.next()) == (0, None)


def test_a_turn_is_not_forgotten_while_items_come() -> None:
    """A caller that was served goes behind those that wait."""
    one, _ = line(9, "a1", "a2", "b1")

    assert one.next() == "a1"
    one.join("c", "c1")
    assert order(one) == "b1 a2 c1"


def test_a_full_line_refuses_the_caller_with_the_most() -> None:
    """One caller cannot fill the line for the others: its newest item makes room."""
    one, refused = line(3, "a1", "a2", "a3", "b1", "a4", "b2", "b3")

    assert refused == [None, None, None, "a3", "a4", "a2", "b3"]
    assert order(one) == "a1 b1 b2"


def test_items_leave_from_anywhere() -> None:
    """An item leaves once; one that does not wait is not found."""
    one, _ = line(9, "a1", "a2", "b1")

    assert one.leave("a", "a2")
    assert not one.leave("a", "a2")
    assert not one.leave("c", "c1")
    assert order(one) == "a1 b1"
