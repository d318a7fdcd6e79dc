"""A play of healthy and of hung servers through the decider that replaces them."""

from __future__ import annotations

import random
import sys

import pytest

from pool_manager.core.health.liveness import Verdict
from tests.support.doses import amount
from tests.support.hang_play import KINDS, Kind, Play

BY_NAME = {kind.name: kind for kind in KINDS}
HOUR_S = 3600.0
FULL_HOURS = {"stream": 300, "unstreamed": 100, "compiles": 100}
"""Virtual hours with FN_FULL=1: a million exchanges in all."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_healthy_server_is_replaced(kind: Kind) -> None:
    """However long a healthy server of each kind is silent, with pauses of its host."""
    seed = random.SystemRandom().randrange(2**32)
    play = Play(kind, random.Random(seed))
    hours = amount(small=3, full=FULL_HOURS.get(play.kind.name, 40))

    for _ in range(int(hours * HOUR_S)):
        assert play.second() is not Verdict.REPLACE, f"seed {seed}: {play}"

    sys.stdout.write(
        f"{play.kind.name}: seed {seed}, {play.exchanges} exchanges, {play.verdicts}\n"
    )
    assert play.exchanges


FOUND = [
    ("stream", False, 45.0),
    ("stream", True, 140.0),
    ("prefill", True, 140.0),
    ("unstreamed", False, 45.0),
    ("pictures", False, 140.0),
    ("pictures", True, 905.0),
    ("compiles", False, 500.0),
    ("compiles", True, 1500.0),
    ("long_compiles", False, 1000.0),
    ("long_compiles", True, 2900.0),
    ("waits", False, 1000.0),
    ("long_pauses", True, 2900.0),
    ("one_slot", False, 3100.0),
    ("one_slot", True, 9200.0),
]
"""Kind, whether it hangs in a loop, and the seconds within which it is replaced once its silences
are learnt."""


@pytest.mark.parametrize(("name", "spins", "most_s"), FOUND)
def test_hung_servers_are_found(name: str, spins: bool, most_s: float) -> None:
    """A server that hangs is found within twice its longest silences; with busy hardware within six
    times and not before 900 s, unless it has a counter. The host does not sleep meanwhile."""
    for _ in range(amount(small=2, full=30)):
        seed = random.SystemRandom().randrange(2**32)
        play = Play(BY_NAME[name], random.Random(seed))
        while play.now < 2 * HOUR_S or not play.silences.is_learnt or not play.is_open:
            play.second()

        play.is_hung, play.spins = True, spins
        found_s = play.until(Verdict.REPLACE, 4 * HOUR_S)

        sys.stdout.write(f"{name}: seed {seed}, found after {found_s} s\n")
        assert found_s is not None, f"seed {seed}"
        assert found_s <= most_s, f"seed {seed}"


def test_what_proves_nothing_is_reported_only() -> None:
    """Without a sample and a counter, and while silences are not learnt, nothing is replaced."""
    for name in ("silent_feed", "batch"):
        seed = random.SystemRandom().randrange(2**32)
        play = Play(BY_NAME[name], random.Random(seed))
        while not play.is_open or play.now < 700.0:
            play.second()
        play.is_hung = play.spins = True

        assert play.until(Verdict.REPLACE, 3 * HOUR_S) is None, f"seed {seed}"
        assert play.verdicts[Verdict.REPORT], f"seed {seed}"
