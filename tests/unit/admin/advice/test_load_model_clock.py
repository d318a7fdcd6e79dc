"""Virtual time."""

from __future__ import annotations

from math import inf

from admin.advice.load_model import Clock


def test_what_is_due_is_done_in_order() -> None:
    """By time, and by the order of asking where that is the same; the clock jumps there."""
    clock, done = Clock(), list[tuple[float, str]]()

    def note(what: str) -> None:
        done.append((clock.now, what))

    clock.at(5.0, note, "last")
    clock.at(1.0, lambda _: clock.after(1.0, note, "later"), None)
    clock.at(2.0, note, "first")
    while clock.next_s() < inf:
        clock.step()

    assert done == [(2.0, "first"), (2.0, "later"), (5.0, "last")]
