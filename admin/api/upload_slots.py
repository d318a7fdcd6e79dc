"""Bounds uploads of blobs: how many at once, and how little progress they may make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from registry.bundles.blobs import UPLOADS_MAX
from registry.errors import BodyTimeout, StoreUnavailable

SLOTS_MAX: Final = UPLOADS_MAX * 3 // 4
"""Uploads of clients at once; the store takes more, for the files that replicas prepare."""
PROGRESS_BYTES: Final = 64 * 1024
PROGRESS_S: Final = 30.0
"""An upload brings so many bytes in so many seconds, or its end; otherwise it is given up."""
STALLED_S: Final = 2.0
"""Without so much progress for so long, an upload gives its slot to one that has none."""


class Slot:
    """One upload. `since_s` is when it last made progress, by the loop's clock."""

    def __init__(self, now: float) -> None:
        self.since_s = now
        self.is_stalled = False
        self._missing = PROGRESS_BYTES
        self._limit = asyncio.timeout_at(now + PROGRESS_S)

    async def __aenter__(self) -> Slot:
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._limit.__aexit__(*exc)  # type: ignore[arg-type] # typeshed splits the three
        except TimeoutError:
            text = f"fewer than {PROGRESS_BYTES} bytes came in {PROGRESS_S:g} s"
            if self.is_stalled:
                text = f"no {PROGRESS_BYTES} bytes came for {STALLED_S:g} s, and others wait"
            raise BodyTimeout(text) from None

    def received(self, count: int) -> None:
        """Bytes came."""
        self._missing -= count
        if self._missing <= 0:
            self._missing = PROGRESS_BYTES
            self.since_s = asyncio.get_running_loop().time()
            self._limit.reschedule(self.since_s + PROGRESS_S)

    def whole(self) -> None:
        """Everything came: what is left to do takes as long as it takes."""
        self._limit.reschedule(None)

    def give_up(self) -> None:
        """End the upload, whose slot is needed."""
        self.is_stalled = True
        if not self._limit.expired():
            self._limit.reschedule(0.0)


class UploadSlots:
    """The uploads of one server; `most` at once."""

    def __init__(self, most: int = SLOTS_MAX) -> None:
        self._most = most
        self._taken: set[Slot] = set()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Slot]:
        """A slot while the block runs. Where all are taken, the upload that has made no progress
        for longest is ended. Raises StoreUnavailable where all make progress, BodyTimeout where
        this one does not."""
        now = asyncio.get_running_loop().time()
        if len(self._taken) >= self._most:
            slowest = min(self._taken, key=lambda slot: slot.since_s)
            if now - slowest.since_s < STALLED_S:
                text = f"{len(self._taken)} uploads are running already"
                raise StoreUnavailable(text, retry_after_s=STALLED_S)
            self._taken.discard(slowest)
            slowest.give_up()
        slot = Slot(now)
        self._taken.add(slot)
        try:
            async with slot:
                yield slot
        finally:
            self._taken.discard(slot)
