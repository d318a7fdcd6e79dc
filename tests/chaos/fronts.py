"""Generated connections to two gateways, with the fast front and without: equal answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from tests.chaos.ledger import Ledger
from tests.support.fronts.compare import Tally, play

STREAMS = 50_000
PARTS = (("uvloop", False, 0.5), ("uvloop", True, 0.3), ("asyncio", False, 0.2))
"""Loop, whether the servers ask for no keys, and the share of the connections."""


async def run(data: Path, seed: int, streams: int = STREAMS) -> Ledger:
    """Every stream differs from every other; what differs in its answers is a violation."""
    ledger = Ledger("two fronts", {"seed": seed})
    for number, (loop, is_open, share) in enumerate(PARTS):
        tally = Tally()
        count = max(1, round(streams * share))
        await asyncio.to_thread(_part, data / str(number), tally, seed, (loop, is_open, count))
        named = f"{loop}, {'no keys' if is_open else 'keys'}"
        ledger.figures[named] = (
            f"{tally.streams} connections, {sum(tally.answers.values())} answers,"
            f" {tally.plain} by the front alone, {tally.handed_over} left to aiohttp,"
            f" {tally.apart} equal only apart"
        )
        for text in tally.differences:
            ledger.violated(f"{named}: {text}")
        ledger.require(
            tally.handed_over < 0.9 * tally.streams, f"{named}: the front reads too little"
        )
    return ledger


def _part(data: Path, tally: Tally, seed: int, part: tuple[str, bool, int]) -> None:
    """In a loop of its own, because a loop is of one kind."""
    loop, is_open, count = part
    run_loop = uvloop.run if loop == "uvloop" else asyncio.run
    seeds = (f"{seed}/{loop}/{number}" for number in range(count))
    run_loop(play(data, tally, seeds, is_open=is_open))
