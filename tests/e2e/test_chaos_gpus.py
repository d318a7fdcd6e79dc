"""Tests of replicas on stand-in GPUs in chaos, in small doses of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import gangs, parks
from tests.support.doses import amount

SEED = 20261129


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_gpu_is_used_twice_and_no_answer_is_lost(tmp_path: Path) -> None:
    """While engines, sidecars and the manager are killed and GPUs are lost, functions on 8, 4, 2
    and one of eight GPUs are answered, and no two engines are on one GPU at once."""
    dose = amount(gangs.Dose(SEED, seconds=25.0, answers=0), gangs.Dose(SEED))

    ledger = await gangs.run(tmp_path, dose)

    assert ledger.violations == []


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_engine_that_woke_wrong_answers(tmp_path: Path) -> None:
    """While engines are parked and woken, and engines, sidecars and the manager are killed in each
    state of a park, all calls are answered right, and no GPU is used twice."""
    least = {"answers": 0, "wakes": 0, "each": 0}
    few = parks.Dose(SEED, parks.FEW, seconds=20.0, broken=parks.SEEN_AT_ONCE, **least)

    ledger = await parks.run(tmp_path, amount(few, parks.Dose(SEED)))

    assert ledger.violations == []
