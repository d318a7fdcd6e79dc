"""Bodies that are refused for a while."""

from __future__ import annotations

from gateway.dispatch.poison import KEPT_MAX, PoisonList

A, B = "default/a@1", "default/b@1"


def test_a_body_is_refused_for_a_minute() -> None:
    """Just this body for just this pool, and for 60 s."""
    poison = PoisonList()
    assert poison.seconds_left(A, b"bad", 0.0) == 0.0

    poison.add(A, b"bad", 100.0)

    assert poison.seconds_left(A, b"bad", 100.0) == 60.0
    assert poison.seconds_left(A, b"bad", 160.0) == 0.0
    assert poison.seconds_left(A, b"good", 100.0) == 0.0
    assert poison.seconds_left(B, b"bad", 100.0) == 0.0


def test_what_is_over_is_forgotten() -> None:
    """A sweep keeps what is still refused, and a body that killed again stays for longer."""
    poison = PoisonList()
    poison.add(A, b"twice", 0.0)
    poison.add(A, b"once", 10.0)
    poison.add(A, b"twice", 50.0)

    poison.sweep(70.0)

    assert len(poison) == 1
    assert poison.seconds_left(A, b"twice", 70.0) == 40.0
    poison.sweep(110.0)
    assert len(poison) == 0


def test_the_list_is_bounded() -> None:
    """When it is full, the body added longest ago is let go."""
    poison = PoisonList()
    for number in range(KEPT_MAX + 1):
        poison.add(A, str(number).encode(), 0.0)

    assert len(poison) == KEPT_MAX
    assert poison.seconds_left(A, b"0", 0.0) == 0.0
    assert poison.seconds_left(A, b"1", 0.0) == 60.0
