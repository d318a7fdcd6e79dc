"""What it costs to let a replica go."""

from __future__ import annotations

from math import exp, log

import pytest

from pool_manager.core.policy.value import UNKNOWN_RELOAD_S, Uses, cost


def used_at(*times: float) -> Uses:
    uses = Uses()
    for now in times:
        uses.called(now)
    return uses


def test_what_was_never_used_costs_nothing() -> None:
    """Nobody is expected to miss it."""
    assert cost(Uses(), 5.0, 100.0) == 0.0


def test_who_was_used_last_costs_most() -> None:
    """Where nothing is known of gaps the order is that of the last use."""
    assert cost(used_at(90.0), 2.0, 100.0) > cost(used_at(50.0), 2.0, 100.0)


def test_who_loads_for_longer_costs_more() -> None:
    """Of two pools used alike, the one that is quickly back goes first."""
    assert cost(used_at(50.0), 20.0, 100.0) == 10 * cost(used_at(50.0), 2.0, 100.0)


def test_a_load_never_measured_is_assumed() -> None:
    """A revision that was never loaded is not free to evict."""
    assert cost(used_at(50.0), 0.0, 100.0) == cost(used_at(50.0), UNKNOWN_RELOAD_S, 100.0) > 0


def test_a_habit_is_known_by_its_gaps() -> None:
    """What is called every ten seconds is expected again in ten, however recently it was called."""
    assert used_at(100.0, 110.0, 120.0).rate(121.0) == pytest.approx(1 / 10)


def test_a_habit_that_ends_is_forgotten() -> None:
    """A pool that was called often and then not for an hour is worth less than its silence."""
    uses = used_at(100.0, 101.0, 102.0)

    assert uses.rate(105.0) == pytest.approx(1.0)
    assert uses.rate(111.0) == pytest.approx(1 / 9)
    assert uses.rate(3702.0) < 1 / 3600


def test_a_silence_between_spells_is_soon_forgotten() -> None:
    """Of a function called every ten seconds, after an hour of silence, the next spell is soon
    known as one: the gap is a geometric mean, which one long silence moves little."""
    uses = used_at(*range(0, 100, 10), *range(3700, 3750, 10))

    assert 10.0 < exp(uses.log_gap or 0.0) < 20.0


def test_new_gaps_weigh_more_than_old_ones() -> None:
    """The mean follows the newest gap by a share of it."""
    assert used_at(0.0, 10.0, 30.0).log_gap == pytest.approx(0.85 * log(10.0) + 0.15 * log(20.0))


def test_a_burst_is_no_more_than_one_use_a_second() -> None:
    """Very short gaps do not make a replica priceless."""
    assert used_at(100.0, 100.1, 100.2).rate(100.2) == 1.0
