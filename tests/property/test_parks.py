"""Parks under faults: a random history is played against a model of what engines really do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.doses import amount
from tests.support.park_play import play
from tests.support.park_play.engine import FAULTS


@given(st.integers(0, 2**32), st.sampled_from((0.2, 0.5, 0.9)))
@settings(max_examples=amount(8, 60), deadline=None)
def test_an_unproven_engine_serves_nobody(seed: int, faults: float) -> None:
    """Whatever sleeps, wakes, dies or is cut off: only a verified engine is listed, what is charged
    is what is in use, no device is given twice, and each function is served in the end."""
    world = play(seed, faults, rounds=20)

    assert world.served == world.specs.keys()
    assert world.fits()


@pytest.mark.parametrize("seed", range(2))
def test_without_faults_servers_are_parked_and_woken(seed: int) -> None:
    """The same history without faults parks servers, and each wake is right."""
    world = play(seed, 0.0)

    assert world.parks >= 10
    assert world.wakes.keys() == {"right"}


def test_many_cycles_with_every_fault() -> None:
    """One run in which each fault is injected; all of `FAULTS` in the full dose."""
    world = play(37, 0.2, cycles=amount(60, 10_000))

    assert world.served == world.specs.keys()
    assert sum(world.injected[fault] > 0 for fault in FAULTS) >= amount(10, len(FAULTS))
