"""Output that an engine keeps, with the time of each line, copied to a log as it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pool_manager.output.logfile import DROPPED

STAMP: Final = len("2026-01-02T03:04:05.123456789Z")
"""Characters of a time as the engine writes it: in UTC, always with all nine digits."""
NS: Final = 10**9

Ask = Callable[[int], Awaitable[bytes | None]]
"""Gives what was written since (Unix seconds), each line behind its time; None for no answer."""


class Spool:
    """Copies each line once. A log's own time is that of its last line, by which the next server
    knows what it has already."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def fetch(self, id: str, log: Path, ask: Ask) -> None:
        """Add to `log` what replica `id` has written since. Raises OSError, and what `ask` does."""
        lock = self._locks.setdefault(id, asyncio.Lock())
        async with lock:
            after = self._last.get(id)
            if after is None:
                after = await asyncio.to_thread(_stamp_of, log)
            output = await ask(_second_of(after))
            text, last = fresh(output or b"", after)
            if text:
                await asyncio.to_thread(_append, log, text, last)
            # The replica may have been released meanwhile.
            if self._locks.get(id) is lock:
                self._last[id] = last

    def forget(self, id: str) -> None:
        """Nothing more comes."""
        self._last.pop(id, None)
        self._locks.pop(id, None)


def fresh(output: bytes, after: str) -> tuple[bytes, str]:
    """The lines later than `after` without their times, and the time of the last.

    A line that has not ended yet is left for later: the engine gives a long one in parts, all with
    the time of the first. Where the line of `after` is not given again, more has come since than
    the engine gives at once, or keeps: a line says that something is missing.
    """
    texts, last, is_first = [], after, True
    for line in output.split(b"\n")[:-1]:
        stamp, text = line[:STAMP], line[STAMP + 1 :]
        shown = stamp.decode("ascii", "replace")
        if is_first and after and shown > after:
            texts.append(DROPPED)
        is_first = False
        if shown > after:
            texts.append(text.replace(stamp + b" ", b"") + b"\n")
            last = shown
    return b"".join(texts), last


def _append(log: Path, text: bytes, last: str) -> None:
    with log.open("ab") as file:
        file.write(text)
    with suppress(ValueError):
        at_ns = _second_of(last) * NS + int(last[STAMP - 10 : STAMP - 1])
        os.utime(log, ns=(at_ns, at_ns))


def _stamp_of(log: Path) -> str:
    """The time of a log's last line, "" where it has none."""
    try:
        found = log.stat()
    except OSError:
        return ""
    if not found.st_size:
        return ""
    seconds, ns = divmod(found.st_mtime_ns, NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _second_of(stamp: str) -> int:
    """Unix seconds; 0 for ""."""
    with suppress(ValueError):
        return int(datetime.fromisoformat(f"{stamp[:19]}+00:00").timestamp())
    return 0
