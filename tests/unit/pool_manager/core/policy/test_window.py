"""What is remembered of a pool's load."""

from __future__ import annotations

import pytest

from pool_manager.core.policy.window import PANIC_S, STABLE_S, LoadWindow


def window(*busy: int, since_s: float = 100.0) -> LoadWindow:
    """One observation a second."""
    made = LoadWindow()
    for second, value in enumerate(busy):
        made.observe(value, since_s + second)
    return made


def test_nothing_observed_is_nothing() -> None:
    """Before the first observation the mean is zero, and what is held is not begun with."""
    empty = LoadWindow()
    empty.hold(5, 100.0)

    assert empty.mean(STABLE_S, 200.0) == 0.0


def test_the_mean_is_over_the_seconds_known() -> None:
    """A pool that was called three seconds ago is judged by three seconds."""
    assert window(3, 6, 9).mean(STABLE_S, 102.0) == 6.0


def test_a_window_forgets_what_is_older() -> None:
    """The short window has seen only its own seconds."""
    loads = window(*[60] * 10, *[6] * PANIC_S)

    assert loads.mean(PANIC_S, 115.0) == 6.0
    assert loads.mean(STABLE_S, 115.0) == pytest.approx((600 + 36) / 16)


def test_the_last_observation_of_a_second_counts() -> None:
    """Two reports within a second are one sample, not two."""
    loads = window(4)
    loads.observe(8, 100.9)

    assert loads.mean(STABLE_S, 100.9) == 8.0


def test_seconds_without_news_are_as_the_one_before() -> None:
    """A late report says nothing about what happened meanwhile."""
    loads = window(6)

    assert loads.mean(STABLE_S, 105.0) == 6.0
    loads.observe(0, 106.0)
    assert loads.mean(STABLE_S, 106.0) == pytest.approx(36 / 7)


def test_what_is_held_counts_from_the_next_second() -> None:
    """News between two samples do not change the sample of their second, but what follows it."""
    loads = window(6)
    loads.hold(0, 100.5)

    assert loads.mean(STABLE_S, 100.9) == 6.0
    assert loads.mean(STABLE_S, 102.0) == 2.0


def test_a_long_silence_fills_the_window() -> None:
    """After more than a window without news nothing older is left in it."""
    loads = window(60, 60, 60, 6)

    assert loads.mean(STABLE_S, 1e6) == 6.0
