"""Test of chaos with several hosts in a small dose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.hosts import scene
from tests.support.doses import amount

SEED = 20261123

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(400)]


async def test_nothing_is_wrong_lost_or_run_twice_when_hosts_fail(
    tmp_path: Path, runtime_image: str
) -> None:
    """While two of three hosts lose replicas, agents, engines, connections, packets and power, and
    the gateway restarts, each call has its answer, and no call of a handler runs twice.

    At the end the server's replicas are the containers on all hosts; nothing is left of them.
    """
    small = ("replica killed", "engine killed", "connections killed", "link cut", "power cut")
    dose = scene.Dose(
        SEED,
        requests=amount(1500, 6000),
        turns=1,
        every_s=(0.2, 1.0),
        kinds=amount(small, scene.Dose.kinds),
        think_s=amount(0.15, 0.0),
    )
    ledger = await scene.run(tmp_path, dose, runtime_image)

    assert ledger.violations == []
    assert ledger.figures["replicas adopted"] > 0
