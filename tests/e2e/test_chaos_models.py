"""Tests of /v1 in chaos, in small doses, as `make chaos` has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import model_bodies
from tests.support.doses import amount

SEED = 20261123

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_odd_bodies_are_refused_or_passed_on_right(tmp_path: Path) -> None:
    """An odd body is refused in its protocol's shape and wakes nothing, or its server gets the
    model that it names; the connection and the gateway's memory stay as they were."""
    ledger = await model_bodies.run(tmp_path, SEED, amount(300, 3_000))

    assert ledger.violations == []
