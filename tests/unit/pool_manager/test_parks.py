"""The proof that a sleeping engine has freed its GPUs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pool_manager.core import commands, events
from pool_manager.core.park.residue import STEADY_READINGS
from pool_manager.core.state import PROOF_S
from pool_manager.gpus.memory import SLACK_MIB
from pool_manager.parks import MARGIN_S, ParkProofs
from registry.tasks import Tasks

ID, A, B = "r1", "GPU-a", "GPU-b"


class Rig:
    """A replica on GPUs whose readings are scripted; the last one is repeated."""

    def __init__(self) -> None:
        self.readings: deque[dict[str, float | None] | Exception] = deque()
        self.now = 100.0
        self.reads = 0
        self.submitted: asyncio.Queue[events.Event] = asyncio.Queue()
        self.tasks = Tasks("proofs")
        occupancy: Any = self
        self.proofs = ParkProofs(
            occupancy, self.tasks, self.submitted.put_nowait, lambda: self.now, self._pause
        )

    async def held_mib(self, id: str) -> dict[str, float | None]:
        assert id == ID
        self.reads += 1
        reading = self.readings.popleft() if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading

    async def _pause(self, seconds: float) -> None:
        self.now += seconds

    async def proved(self, *readings: dict[str, float | None] | Exception) -> events.Event:
        """The end of a proof that at most 500 MiB are left."""
        self.readings.extend(readings)
        self.proofs.prove(commands.ProvePark(ID, 500.0))
        return await self.submitted.get()

    async def kept(self, *readings: dict[str, float | None]) -> dict[str, float] | str:
        """What a trial learns of an engine that held 8,000 MiB awake."""
        self.readings.extend(readings)
        awake = await self.proofs.awake_mib(ID)
        assert isinstance(awake, dict)
        return await self.proofs.residue_mib(ID, awake)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.tasks.close()


async def test_each_gpu_has_to_be_free(rig: Rig) -> None:
    """Memory may be freed some time after the answer of the engine; the last GPU counts."""
    proven = await rig.proved({A: 8000.0, B: 8000.0}, {A: 500.0, B: 900.0}, {A: 500.0, B: 600.0})

    assert proven == events.ParkProven(ID, {A: 500.0, B: 600.0})
    assert rig.reads == 3


async def test_what_is_kept_refutes_it(rig: Rig) -> None:
    """An engine that holds more than in its trial is refuted before the machine's own limit."""
    began = rig.now
    refuted = await rig.proved({A: 500.0 + SLACK_MIB, B: 501.0 + SLACK_MIB})

    assert isinstance(refuted, events.ParkRefuted)
    assert refuted.reason == (
        "its processes hold 757 MiB of GPU-b, expected at most 500 as in its trial and 256 of slack"
    )
    assert PROOF_S - MARGIN_S <= rig.now - began < PROOF_S


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        ({}, "it is on no GPU whose memory can be read"),
        (
            {A: 100.0, B: None},
            "the driver does not report what its processes hold on GPU-b",
        ),
    ],
)
async def test_what_is_not_read_proves_nothing(
    rig: Rig, reading: dict[str, float | None], reason: str
) -> None:
    """Silence of the driver is no proof."""
    assert await rig.proved(reading) == events.ParkRefuted(ID, reason)


async def test_an_error_is_an_answer(rig: Rig) -> None:
    """A reading that fails refutes: the machine waits for one of the two."""
    refuted = await rig.proved(RuntimeError("no such thing"))

    assert refuted == events.ParkRefuted(ID, "what it holds could not be read: no such thing")


async def test_one_proof_at_a_time(rig: Rig) -> None:
    """A second command while a proof goes on begins none; after it, it does."""
    rig.readings.append({A: 1.0})
    for _ in range(3):
        rig.proofs.prove(commands.ProvePark(ID, 500.0))
    await rig.submitted.get()
    assert rig.reads == 1

    rig.proofs.prove(commands.ProvePark(ID, 500.0))

    assert await rig.submitted.get() == events.ParkProven(ID, {A: 1.0})
    assert rig.submitted.empty()


AWAKE: dict[str, float | None] = {A: 8000.0, B: 8000.0}
ASLEEP: dict[str, float | None] = {A: 500.0, B: 600.0}


async def test_a_trial_learns_what_an_engine_keeps(rig: Rig) -> None:
    """As soon as that stays the same."""
    began = rig.now
    freeing: dict[str, float | None] = {A: 500.0, B: 3000.0}

    assert await rig.kept(AWAKE, AWAKE, freeing, ASLEEP) == ASLEEP
    assert rig.reads == 3 + STEADY_READINGS
    assert rig.now - began < 3


async def test_an_engine_that_frees_late_is_waited_for(rig: Rig) -> None:
    """Some answer before they have freed anything, and nothing changes for a while."""
    assert await rig.kept(*[AWAKE] * 20, ASLEEP) == ASLEEP


async def test_an_engine_that_frees_too_little_is_refused(rig: Rig) -> None:
    """At the end of the time of a proof, with the figures."""
    began = rig.now
    half: dict[str, float | None] = {A: 500.0, B: 4000.0}

    found = await rig.kept(AWAKE, half)

    assert isinstance(found, str)
    assert "hold 4,000 MiB of GPU-b asleep and 8,000 awake" in found
    assert PROOF_S - MARGIN_S <= rig.now - began < PROOF_S


async def test_an_engine_that_never_settles_is_judged_in_the_end(rig: Rig) -> None:
    """By what it holds then."""
    changing = [{A: 500.0, B: 600.0 + 20 * (one % 2)} for one in range(200)]

    found = await rig.kept(AWAKE, *changing)

    assert isinstance(found, dict)
    assert max(found.values()) <= 620


async def test_a_trial_without_readings_says_why(rig: Rig) -> None:
    """Before the sleep and after it, once the driver has been silent for long."""
    rig.readings.append({A: None})
    silent = "the driver does not report what its processes hold on GPU-a"

    for found in (rig.proofs.awake_mib(ID), rig.proofs.residue_mib(ID, {A: 8000.0})):
        began = rig.now
        assert await found == silent
        assert PROOF_S - MARGIN_S <= rig.now - began < PROOF_S


async def test_a_trial_on_no_gpu_says_so_at_once(rig: Rig) -> None:
    """Nothing will ever be read."""
    rig.readings.append({})

    assert await rig.proofs.awake_mib(ID) == "it is on no GPU whose memory can be read"
    assert rig.reads == 1


async def test_a_driver_that_is_silent_for_a_moment_is_asked_again(rig: Rig) -> None:
    """On a busy machine it may take longer to answer than is waited for."""
    silent: dict[str, float | None] = {A: None, B: 8000.0}

    assert await rig.kept(silent, AWAKE, silent, *[ASLEEP] * STEADY_READINGS) == ASLEEP
