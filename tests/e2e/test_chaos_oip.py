"""Tests of the Open Inference Protocol in chaos, in small doses, as `make chaos` has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import cold_clients, oip_models
from tests.support.doses import amount

SEED = 20261123

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_models_are_loaded_and_unloaded_under_load(tmp_path: Path) -> None:
    """Calls of models that two clients load and unload at once are answered right, or refused by
    the rules."""
    dose = oip_models.Dose(SEED, seconds=amount(1, 60), models=amount(2, 10), slots=amount(1, 2))

    ledger = await oip_models.run(tmp_path, dose)

    assert ledger.violations == []


async def test_a_crowd_of_clients_starts_a_cold_model_once(tmp_path: Path) -> None:
    """Triton's clients that call a cold model at once, with their default timeouts, all get right
    answers of one start."""
    dose = cold_clients.Dose(clients=amount(20, 100), start_s=amount(0.5, 20))

    ledger = await cold_clients.run(tmp_path, dose)

    assert ledger.violations == []
