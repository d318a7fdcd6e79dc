"""How often servers of a function may be replaced."""

from __future__ import annotations

import pytest

from pool_manager.core.health.guards import FORGET_S, UNSERVED_MAX, WAIT_S, Guards
from pool_manager.core.health.liveness import Cause


def test_hung_servers_are_replaced_at_growing_intervals() -> None:
    """Once in 10, then 20, then 40 min; after two hours without one, in 10 min again."""
    guards, now = Guards(), 0.0
    for wait_s in (WAIT_S, 2 * WAIT_S, 4 * WAIT_S, 4 * WAIT_S):
        assert guards.obstacle("f", Cause.IDLE, now) == ""
        guards.replaced("f", Cause.IDLE, now)
        guards.served("f")
        text = guards.obstacle("f", Cause.STUCK, now + wait_s - 1)
        assert text == f"another one was replaced {wait_s - 1:.0f} s ago"
        now += wait_s

    now += FORGET_S
    guards.replaced("f", Cause.IDLE, now)
    guards.served("f")
    assert guards.obstacle("f", Cause.IDLE, now + WAIT_S) == ""


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.FAILING])
def test_dead_servers_are_replaced_at_once(cause: Cause) -> None:
    """Nothing is lost with a server that takes no connections, or answers with errors only."""
    guards = Guards()
    guards.replaced("f", Cause.IDLE, 0.0)
    guards.replaced("f", cause, 1.0)

    assert guards.obstacle("f", cause, 2.0) == ""


def test_three_in_a_row_without_an_answer_switch_it_off() -> None:
    """Whatever the cause; an answered call switches it on. Other functions are not concerned."""
    guards = Guards()
    guards.served("f")
    for _ in range(UNSERVED_MAX):
        assert guards.obstacle("f", Cause.REFUSED, 0.0) == ""
        guards.replaced("f", Cause.REFUSED, 0.0)

    text = "the last 3 that replaced one another have answered no call"
    assert guards.obstacle("f", Cause.REFUSED, 1e6) == text
    assert guards.obstacle("g", Cause.REFUSED, 0.0) == ""
    guards.served("f")
    assert guards.obstacle("f", Cause.REFUSED, 0.0) == ""


def test_a_function_without_revisions_is_forgotten() -> None:
    """A function of the same name begins anew."""
    guards = Guards()
    guards.replaced("f", Cause.IDLE, 0.0)

    guards.forget("f")
    guards.forget("f")

    assert guards.obstacle("f", Cause.IDLE, 1.0) == ""
