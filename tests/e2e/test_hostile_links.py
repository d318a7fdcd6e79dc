"""Test of hostile peers at both doors of links over TLS, in a small dose: each kind of attack."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.links import scene
from tests.chaos.links.attacks import AT_REPLICA, AT_SERVER, Outcome, Target, attack
from tests.chaos.links.elsewhere import elsewhere

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def dose(kinds: int) -> scene.Dose:
    """Each kind once as fast as possible, and once within the limits of the door."""
    return scene.Dose(
        7, connections=kinds, judged=kinds, turns=1, quiet_s=0.5, threads=32, crowd=60
    )


async def test_none_enters_at_the_server(tmp_path: Path) -> None:
    """No hostile peer gets anything but FAILED at the server's door. A replica's link and its
    files, and calls of local functions, go on, and nothing of the attack is left."""
    ledger = await scene.run(tmp_path, dose(len(AT_SERVER)))

    assert ledger.violations == []


async def test_none_enters_at_a_replica(tmp_path: Path) -> None:
    """No hostile peer gets a byte from the listener of a replica, also not with the certificate of
    another replica; calls to it go on."""
    ledger = await scene.run_at_replica(tmp_path, dose(len(AT_REPLICA)))

    assert ledger.violations == []


async def test_an_open_door_is_seen(tmp_path: Path) -> None:
    """A server that welcomes everybody is found out by each attack that speaks TLS 1.3 at all."""
    chance = random.Random(7)
    async with elsewhere(tmp_path, "open") as at:
        target = Target.load(at)
        found = Counter(
            [await asyncio.to_thread(attack, target, kind, chance, 10) for kind in AT_SERVER]
        )

    assert found[Outcome.ENTERED] > 0.8 * len(AT_SERVER)
