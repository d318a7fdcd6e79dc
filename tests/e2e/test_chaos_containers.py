"""Tests of chaos with containers in small doses: with their engine, and with servers over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.containers import neighbours, pair_scene, scene
from tests.support.doses import amount
from tests.support.own_engine import OwnEngine

SEED = 20261120

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def loaded_engine(runtime_image: str) -> Iterator[OwnEngine]:
    """An engine with the runtime image. It runs during tests only: one that a test has started may
    not outlive it."""
    with OwnEngine() as engine:
        engine.load(runtime_image)
        engine.stop()
        yield engine


@pytest.fixture
def own_engine(loaded_engine: OwnEngine) -> Iterator[OwnEngine]:
    """An engine with the runtime image, which the test may kill, and starts again."""
    loaded_engine.start()
    yield loaded_engine
    loaded_engine.stop()


async def test_only_what_is_in_a_killed_servers_own_sockets_breaks_off(
    tmp_path: Path, runtime_image: str, own_engine: OwnEngine
) -> None:
    """Under every fault, with 64 clients of five functions, each answer is right; only the sockets
    of a killed server break.

    Warm containers outlive server and engine, and at the end nothing is left on the engine.
    """
    dose = scene.Dose(
        seed=SEED,
        requests=amount(600, 1500),
        turns=0,
        fatal_turns=1,
        every_s=(0.1, 0.5),
        think_s=amount(0.3, 0.0),
    )
    ledger = await scene.run(tmp_path, dose, runtime_image, own_engine)

    assert ledger.violations == []


async def test_two_servers_on_one_engine_leave_each_other_alone(
    tmp_path: Path, runtime_image: str, own_engine: OwnEngine
) -> None:
    """Two servers on one engine, killed and restarted under load, keep their own containers, and
    each answer is of its own server's model."""
    ledger = await neighbours.run(
        tmp_path, SEED, runtime_image, kills=amount(1, 2), given=own_engine
    )

    assert ledger.violations == []
    assert ledger.figures["neighbours' containers that went on"] > 0


async def test_servers_in_containers_answer_right_or_refuse_by_the_rules(
    tmp_path: Path, runtime_image: str, own_engine: OwnEngine
) -> None:
    """While containers of servers, their sidecars, the engine and the gateway are killed, no answer
    is wrong, no request that the rules save is lost, and none is run twice that must not be.

    The gateway's calls balance, and at the end nothing is left on the engine.
    """
    small = ("server killed", "sidecar removed", "worker killed", "gateway and engine killed")
    dose = pair_scene.Dose(
        SEED,
        turns=0,
        fatal_turns=1,
        every_s=(0.1, 0.5),
        fatal=amount(small, pair_scene.Dose.fatal),
        think_s=amount(0.1, 0.0),
    )
    ledger = await pair_scene.run(tmp_path, dose, runtime_image, own_engine)

    assert ledger.violations == []
    assert ledger.figures["pairs adopted"] > 0
