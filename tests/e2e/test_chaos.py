"""Tests of chaos in small doses, as `make chaos` has it: what must hold while processes die."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import (
    dial_ins,
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
from tests.support.dial_in.places import can_open_networks
from tests.support.doses import amount

SEED = 20261120

pytestmark = pytest.mark.timeout(180)  # deaths cost time, on a busy machine more


@pytest.mark.slow
async def test_nothing_is_lost_and_nothing_stays_while_replicas_are_killed(tmp_path: Path) -> None:
    """While replicas are killed every answer is right, and afterwards nothing is left.

    Three functions share two slots, bursts move between them, clients leave, and a replica is
    killed twice a second.
    """
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
    """Of many requests only the one that kills its replica fails, as poison; the others are
    answered, and the function never counts as failing."""
    ledger = await poison.run(tmp_path, SEED, requests=amount(150, 300))

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_late_request_is_the_only_one_of_its_batch_that_fails(tmp_path: Path) -> None:
    """A request over its timeout is 504 and its batch mates are answered, whether the run is in the
    thread, inline, or in a handler that cannot be stopped."""
    ledger = await late_run.run(tmp_path, rounds=[(0.5, 1)])

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_replica_that_hangs_is_replaced(tmp_path: Path) -> None:
    """A stopped replica is detected by missing PONGs, and its requests run on another."""
    ledger = await frozen.run(tmp_path, SEED, stops=amount(1, 2))

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_server_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    """A server killed during deploys and calls restarts with a sound store, adopts its replicas and
    answers right; at the end no process is left."""
    ledger = await restarts.run(tmp_path, SEED, kills=2, orphan_s=8.0)

    assert ledger.violations == []


@pytest.mark.slow
@pytest.mark.skipif(not can_open_networks(), reason="namespaces need root and /dev/net/tun")
async def test_replicas_that_dial_in_lose_no_call(tmp_path: Path) -> None:
    """Replicas in networks of their own, which share nothing with the server: they and the server
    are killed, and the paths between them cut."""
    dose = dial_ins.Dose(
        SEED,
        replicas=4,
        clients=4,
        kills=1,
        restarts=1,
        short_cut_s=2.0,
        long_cut_s=18.0,
        orphan_s=12.0,
        host_lost_s=30.0,
        calm_s=1.0,
        cold=2,
        memory_mib=4096.0,
        evicts=False,
    )
    ledger = await dial_ins.run(tmp_path, dose)

    assert ledger.violations == []


@pytest.mark.slow
async def test_a_gateway_process_that_is_killed_takes_only_its_own_connections(
    tmp_path: Path,
) -> None:
    """Killing gateway processes under load cuts off their own connections only; everything is
    counted, and none outlives a killed supervisor."""
    ledger = await workers.run(tmp_path, SEED, kills=amount(1, 2))

    assert ledger.violations == []


@pytest.mark.slow
async def test_two_fronts_answer_alike(tmp_path: Path) -> None:
    """The fast path and aiohttp give equal answers, with and without keys, on uvloop and
    asyncio."""
    ledger = await fronts.run(tmp_path, SEED, streams=amount(100, 200))

    assert ledger.violations == []


@pytest.mark.slow
async def test_every_process_is_killed_under_one_load(tmp_path: Path) -> None:
    """While replicas, gateway processes, the supervisor and all of them are killed, each answer is
    right or a documented refusal; between the kills no connection is cut off."""
    ledger = await together.run(tmp_path, SEED, requests=amount(700, 1_500))

    assert ledger.violations == []


@pytest.mark.slow
async def test_floods_stay_outside(tmp_path: Path) -> None:
    """Under decompression bombs, slow uploads, partial heads and malformed requests, calls are
    answered, no error is logged and memory stays bounded. The delay of the event loop is only
    recorded."""
    seconds = amount(1.0, 2.0)
    dose = floods.Dose(bombs=8, uploads=50, heads=300, mutants=2, seconds=seconds, late_s=None)
    ledger = await floods.run(tmp_path, dose)

    assert ledger.violations == []


@pytest.mark.slow
async def test_answers_of_strangers_never_mix(tmp_path: Path) -> None:
    """Under hostile callers each answer is that of its row alone, for models that mix rows and
    honest ones; only the honest ones share runs."""
    joined = ("mlp_torchscript", "encoder_dynamo", "recommender_dynamo", "tf_idf")
    ledger = await strangers.run(
        tmp_path, strangers.Dose(SEED, calls=2_000, mixing=amount(2, 4), joined=joined)
    )

    assert ledger.violations == []
    assert ledger.figures["share of honest calls that shared a run"] > 0


@pytest.mark.slow
async def test_wrong_answers_of_strangers_are_found(tmp_path: Path) -> None:
    """If rows are joined wrongly by the owner's word alone, the scenario detects it."""
    dose = strangers.Dose(SEED, calls=300, mixing=0, joined=(), trusted=strangers.UNREFUTED)
    ledger = await strangers.run(tmp_path, dose)

    assert ledger.figures["statuses"] == {"200": 300}
    assert ledger.figures["wrong"] == len(ledger.violations) > 30
