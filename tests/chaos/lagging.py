"""`fnctl` that records its event-loop lag: `python -m tests.chaos.lagging FILE serve`.

FILE receives pairs of 8-byte floats: when a timer was due (system monotonic clock, seconds) and how
many seconds late it ran.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import admin.serve
from admin.cli.main import main
from admin.settings import Settings

EVERY_S = 0.002


async def _sample(record: array[float], file: Path) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + EVERY_S
    written_s = 0.0
    while True:
        ran = asyncio.Event()
        loop.call_at(due, ran.set)
        await ran.wait()
        now = loop.time()
        record.extend((time.monotonic() - (now - due), now - due))
        due = now + EVERY_S
        if now - written_s > 1.0:
            written_s = now
            with file.open("ab") as out:
                record.tofile(out)
            del record[:]


def run() -> None:
    """Take FILE off the command line, then serve."""
    file = Path(sys.argv.pop(1))
    serve = admin.serve._serve

    async def sampled(settings: Settings, *rest: Any) -> None:
        record: array[float] = array("d")
        sampling = asyncio.ensure_future(_sample(record, file))
        try:
            await serve(settings, *rest)
        finally:
            sampling.cancel()

    admin.serve._serve = sampled
    main()


def late(file: Path, since_s: float) -> list[float]:
    """Return the sorted lags in seconds of timers that were due after `since_s`."""
    pairs = array("d")
    pairs.frombytes(file.read_bytes())
    return sorted(pairs[n + 1] for n in range(0, len(pairs), 2) if pairs[n] >= since_s)


if __name__ == "__main__":
    run()
