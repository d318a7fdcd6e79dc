"""Test of replicas on several stand-in GPUs in chaos, in a small dose of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import gangs
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
