"""What the trial of a deploy waits for, told as a detail of the deploy's phase."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from admin.deploy.operations import Phase
from pool_manager.core.starts import Awaited
from registry.tasks import Tasks

VERIFY: Final = "verify"
"""The phase of a trial."""
LOOK_S: Final = 1.0
"""Seconds between two looks at what a trial waits for."""
AGAIN_MIN_S: Final = 10.0
AGAIN_MAX_S: Final = 60.0
"""The same is told again after as long as it has lasted, within these bounds."""


class Telling:
    """Decides when to tell what a trial waits for. Pure."""

    def __init__(self) -> None:
        self._told = ("", "")
        self._next_s = 0.0

    def phase(self, awaited: Awaited | None) -> str:
        """Return the phase to publish, "" for the one published last: (1) nothing is waited for any
        more; (2) something new; (3) the same, for long enough to be told again."""
        if awaited is None:
            was, self._told = self._told, ("", "")
            return VERIFY if any(was) else ""  # (1)
        told = awaited.what, awaited.why
        if told == self._told and awaited.seconds < self._next_s:
            return ""
        self._told = told  # (2), (3)
        pause_s = min(AGAIN_MAX_S, max(AGAIN_MIN_S, awaited.seconds))
        self._next_s = awaited.seconds + pause_s
        return f"{VERIFY} {awaited}"


@asynccontextmanager
async def told(
    tasks: Tasks,
    awaited: Callable[[], Awaited | None],
    phase: Phase | None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Tell within the block, in the phase, what is `awaited`. `pause` is awaited between two
    looks."""
    if phase is None:
        yield
        return
    task = tasks.spawn("tell what a trial waits for", _tell(awaited, phase, pause))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _tell(
    awaited: Callable[[], Awaited | None],
    phase: Phase,
    pause: Callable[[float], Awaitable[object]],
) -> None:
    telling = Telling()
    while True:
        await pause(LOOK_S)
        if text := telling.phase(awaited()):
            await phase(text)
