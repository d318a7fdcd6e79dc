"""The proof that a sleeping engine has freed its GPUs: what the driver reports of its processes.

A trial learns what an engine keeps (`residue_mib`); each later park must keep as little (`prove`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from pool_manager.core import commands, events
from pool_manager.core.park.residue import Held, is_steady, why_not_freed, why_unreadable
from pool_manager.core.state import PROOF_S
from pool_manager.gpus.memory import SLACK_MIB
from pool_manager.gpus.occupancy import GpuOccupancy
from registry.tasks import Tasks

POLL_S: Final = 0.25
"""Seconds between two readings: an engine may free its memory after it has answered."""
MARGIN_S: Final = 3.0
"""A proof ends this long before the machine's limit, which could only say that none came."""


class ParkProofs:
    """Proofs of one manager's parks. Event loop thread only."""

    def __init__(
        self,
        occupancy: GpuOccupancy,
        tasks: Tasks,
        submit: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`submit` gets ParkProven or ParkRefuted. `pause` is awaited between two readings."""
        self._occupancy = occupancy
        self._tasks = tasks
        self._submit = submit
        self._clock = clock
        self._pause = pause
        self._running: set[str] = set()
        """Replicas whose proof is going on: a manager that has found a replica asks again."""

    def prove(self, command: commands.ProvePark) -> None:
        """Begin a proof, unless one of this replica is going on."""
        if command.id not in self._running:
            self._running.add(command.id)
            self._tasks.spawn(f"park of {command.id}", self._prove(command.id, command.residue_mib))

    async def awake_mib(self, id: str) -> dict[str, float] | str:
        """Return what a replica holds of each of its GPUs, or why that cannot be read. A driver
        that is silent is asked again, for as long as a proof at most."""
        until_s = self._clock() + PROOF_S - MARGIN_S
        while True:
            held = await self._occupancy.held_mib(id)
            problem = why_unreadable(held)
            if not problem or not held or self._clock() >= until_s:
                return problem or _known(held)
            await self._pause(POLL_S)

    async def residue_mib(self, id: str, awake: dict[str, float]) -> dict[str, float] | str:
        """Return what a replica holds of each of its GPUs once its engine sleeps, or why that is
        too much. `awake` is what it held before. Waits until it stays the same, for as long as a
        proof at most."""
        until_s, readings = self._clock() + PROOF_S - MARGIN_S, list[Held]()
        while True:
            held = await self._occupancy.held_mib(id)
            readings.append(held)
            problem = why_unreadable(held) or why_not_freed(awake, held)
            if self._clock() >= until_s or (not problem and is_steady(readings)):
                return problem or _known(held)
            await self._pause(POLL_S)

    async def _prove(self, id: str, residue_mib: float) -> None:
        try:
            held, problem = await self._readings(id, residue_mib)
        except Exception as error:
            self._submit(events.ParkRefuted(id, f"what it holds could not be read: {error}"))
            raise
        finally:
            self._running.discard(id)
        if problem:
            self._submit(events.ParkRefuted(id, problem))
        else:
            self._submit(events.ParkProven(id, held))

    async def _readings(self, id: str, residue_mib: float) -> tuple[dict[str, float], str]:
        """Read until a replica holds little enough of each of its GPUs, or time is over; return the
        last readings, and what is wrong with them."""
        until_s = self._clock() + PROOF_S - MARGIN_S
        while True:
            held = await self._occupancy.held_mib(id)
            problem = _problem(held, residue_mib)
            if not problem or self._clock() >= until_s:
                return _known(held), problem
            await self._pause(POLL_S)


def _known(held: Held) -> dict[str, float]:
    return {device: mib for device, mib in held.items() if mib is not None}


def _problem(held: Held, residue_mib: float) -> str:
    """Return what keeps readings from proving a park, "" if they prove it."""
    for device, mib in _known(held).items():
        if mib > residue_mib + SLACK_MIB:
            return (
                f"its processes hold {mib:,.0f} MiB of {device}, expected at most"
                f" {residue_mib:,.0f} as in its trial and {SLACK_MIB:,.0f} of slack"
            )
    return why_unreadable(held)
