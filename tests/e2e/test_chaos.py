"""Small doses of what `make chaos` does: what must hold while processes die."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import (
    floods,
    fronts,
    frozen,
    late_run,
    poison,
    restarts,
    rounds,
    strangers,
    together,
    workers,
)
from tests.support.doses import amount

SEED = 20261120

pytestmark = pytest.mark.timeout(180)  # deaths cost time, on a busy machine more of it


@pytest.mark.slow
async def test_nothing_is_lost_and_nothing_stays_while_replicas_are_killed(tmp_path: Path) -> None:
    """Three functions on two slots, bursts that move between them, clients that leave, a replica
    killed twice a second: every answer is right, and afterwards all is as it was."""
    dose = rounds.Dose(
        seed=SEED,
        requests=300,
        rounds=2,
        functions=3,
        phases=2,
        every_s=(0.1, 0.4),
        kills_min=1,
        returns_min=1,
    )
    ledger = await rounds.run(tmp_path, dose)

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_request_that_kills_is_the_only_one_that_fails(tmp_path: Path) -> None:
    """One of many kills the process of its model each time: the others are answered right, it is
    told that it is poison, and the function never counts as failing."""
    ledger = await poison.run(tmp_path, SEED, requests=amount(150, 300))

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_late_request_is_the_only_one_of_its_batch_that_fails(tmp_path: Path) -> None:
    """504 for it and right answers for its mates, be the runs in the thread, inline, or a
    handler's that cannot be stopped."""
    ledger = await late_run.run(tmp_path, rounds=[(0.5, 1)])

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_replica_that_hangs_is_replaced(tmp_path: Path) -> None:
    """A stopped process is found out by its PINGs, and what it had is run by another."""
    ledger = await frozen.run(tmp_path, SEED, stops=amount(1, 2))

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_server_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    """Killed in the middle of deploys and calls, each next one has a sound store, adopts what
    runs and answers right; in the end no process is left."""
    ledger = await restarts.run(tmp_path, SEED, kills=2, orphan_s=8.0)

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_gateway_process_that_is_killed_takes_only_its_own_connections(
    tmp_path: Path,
) -> None:
    """Killed under load, one after the other: all else is answered right and counted, and none is
    left when their supervisor is killed, too."""
    ledger = await workers.run(tmp_path, SEED, kills=amount(1, 2))

    assert ledger.violations == []


@pytest.mark.slow
async def test_two_fronts_answer_alike(tmp_path: Path) -> None:
    """With and without keys, on uvloop and on asyncio's own loop: no answer differs."""
    ledger = await fronts.run(tmp_path, SEED, streams=amount(100, 200))

    assert ledger.violations == []


@pytest.mark.slow
async def test_everybody_is_killed_under_one_load(tmp_path: Path) -> None:
    """Replicas, gateway processes, the supervisor, and all of them at once: every answer is right
    or a refusal that is promised, and nothing is cut off while all is calm."""
    ledger = await together.run(tmp_path, SEED, requests=amount(700, 1_500))

    assert ledger.violations == []


@pytest.mark.slow
async def test_floods_stay_outside(tmp_path: Path) -> None:
    """Bombs, slow uploads, half heads and mutants at idle priority: calls are answered, nothing is
    complained of, and the memory stays bounded. How late the loop was is only written down here."""
    seconds = amount(1.0, 2.0)
    dose = floods.Dose(bombs=8, uploads=50, heads=300, mutants=2, seconds=seconds, late_s=None)
    ledger = await floods.run(tmp_path, dose)

    assert ledger.violations == []


@pytest.mark.slow
async def test_answers_of_strangers_never_mix(tmp_path: Path) -> None:
    """Models that mix rows and honest ones under many callers with hostile rows: each answer is
    that of its row alone, and only rows of honest models share runs."""
    joined = ("mlp_torchscript", "encoder_dynamo", "recommender_dynamo", "tf_idf")
    ledger = await strangers.run(
        tmp_path, strangers.Dose(SEED, calls=2_000, mixing=amount(2, 4), joined=joined)
    )

    assert ledger.violations == []
    assert ledger.figures["share of honest calls that shared a run"] > 0


@pytest.mark.slow
async def test_wrong_answers_of_strangers_are_found(tmp_path: Path) -> None:
    """Where rows are joined by their owner's word alone, and wrongly, the scenario sees it."""
    dose = strangers.Dose(SEED, calls=300, mixing=0, joined=(), trusted=strangers.UNREFUTED)
    ledger = await strangers.run(tmp_path, dose)

    assert ledger.figures["statuses"] == {"200": 300}
    assert ledger.figures["wrong"] == len(ledger.violations) > 30
