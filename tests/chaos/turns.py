"""Fairness: more always-busy functions than slots, and each gets its turn."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from pool_manager.core.eviction import RESIDENCY_S
from pool_manager.core.state import DRAIN_S
from tests.chaos.calls import served
from tests.chaos.ledger import Ledger
from tests.chaos.load import Request, clients
from tests.chaos.subjects import Subject, chosen

SLOTS = 2
CALLERS = 4
"""Callers per function; each sends its next request as soon as it gets an answer."""
IDLE_S = 300.0
TURN_S = RESIDENCY_S + 2.0
"""Residency plus drain and reload. Runs take milliseconds here and loads less than a second; a
drain that used its whole deadline would be a defect."""


async def run(data: Path, seconds: float = 120.0, functions: int = 5) -> Ledger:
    """Keep all functions busy for `seconds`; bound the longest time without an answer per
    function."""
    assert TURN_S < DRAIN_S
    bound_s = functions * TURN_S
    ledger = Ledger("taking turns", {"functions": functions, "slots": SLOTS, "bound_s": bound_s})
    async with served(data, cpu_slots=SLOTS) as (server, caller):
        for subject in chosen(functions):
            await subject.deploy(caller, data, IDLE_S)
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            loads = {
                subject.name: group.create_task(
                    clients(server.url, _until(subject, began_s + seconds), CALLERS, ledger)
                )
                for subject in chosen(functions)
            }
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    for name, load in loads.items():
        tally = load.result()
        gap_s = longest_gap_s([began_s, *sorted(tally.answered_s)])
        ledger.figures[name] = f"{tally.right} right answers, at most {gap_s:.1f} s without one"
        ledger.require(0 < gap_s <= bound_s, f"{name}: no answer for {gap_s:.1f} s")
    return ledger


def longest_gap_s(times_s: list[float]) -> float:
    """Return the longest interval between two consecutive times."""
    return max((later - sooner for sooner, later in itertools.pairwise(times_s)), default=0.0)


def _until(subject: Subject, end_s: float) -> Iterator[Request]:
    """Yield requests for one function until `end_s`."""
    for number in itertools.count(1):
        if time.monotonic() >= end_s:
            return
        yield Request(number, subject)
