"""Differential test: equal answers from a gateway with the fast front and one without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from tests.chaos.ledger import Ledger
from tests.support.fronts.compare import Tally, play

STREAMS = 50_000
PARTS = (("uvloop", False, 0.5), ("uvloop", True, 0.3), ("asyncio", False, 0.2))
"""Event loop, whether the servers run without keys, share of the connections."""


async def run(data: Path, seed: int, streams: int = STREAMS) -> Ledger:
    """Play generated connections against both gateways; every difference is a violation."""
    ledger = Ledger("two fronts", {"seed": seed})
    for number, (loop, is_open, share) in enumerate(PARTS):
        tally = Tally()
        count = max(1, round(streams * share))
        await asyncio.to_thread(_part, data / str(number), tally, seed, (loop, is_open, count))
        named = f"{loop}, {'no keys' if is_open else 'keys'}"
        ledger.figures[named] = (
            f"{tally.streams} connections, {sum(tally.answers.values())} answers,"
            f" {tally.plain} by the front alone, {tally.handed_over} handed over to aiohttp,"
            f" {tally.apart} equal only in separate writes"
        )
        for text in tally.differences:
            ledger.violated(f"{named}: {text}")
        ledger.require(
            tally.handed_over < 0.9 * tally.streams,
            f"{named}: the front hands over too many connections",
        )
    return ledger


def _part(data: Path, tally: Tally, seed: int, part: tuple[str, bool, int]) -> None:
    """Run one part in its own event loop: each part names its loop implementation."""
    loop, is_open, count = part
    run_loop = uvloop.run if loop == "uvloop" else asyncio.run
    seeds = (f"{seed}/{loop}/{number}" for number in range(count))
    run_loop(play(data, tally, seeds, is_open=is_open))
