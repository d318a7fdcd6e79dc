"""Images of an engine that exists only in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from dataclasses import replace

from pool_manager.images import FoundImage, PullProgress, RemovedImage
from registry.errors import DriverError

MIB = 2**20


def image(number: int, *ports: int, **fields: object) -> FoundImage:
    """An image whose id and digest have this number."""
    digest = f"registry.example/app@sha256:{number:064x}"
    made = FoundImage(f"sha256:{number:064x}", digest, ports or (8000,))
    return replace(made, **fields)  # type: ignore[arg-type] # the caller's names


class FakeImages:
    """Images by reference: `there` on the engine, `remote` in registries. `pins` are the ids that
    are pinned, `pulls` the references that were pulled. A pull waits while `gate` is unset, and so
    do changes of tags while `tags` is unset; `tagging` counts those that wait. `asked` are the
    references that were looked for."""

    def __init__(self) -> None:
        self.there: dict[str, FoundImage] = {}
        self.remote: dict[str, FoundImage] = {}
        self.pins: set[str] = set()
        self.pulled: set[str] = set()
        self.pulls: list[str] = []
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.tags = asyncio.Event()
        self.tags.set()
        self.tagging = 0
        self.refusal = ""
        self.maps_users = False
        self.asked: list[str] = []

    async def find(self, reference: str) -> FoundImage | None:
        """Return an image by reference, id or digest."""
        self.asked.append(reference)
        for name, found in self.there.items():
            if reference in (name, found.id, found.digest):
                return found
        return None

    async def pull(self, reference: str) -> AsyncGenerator[PullProgress, None]:
        """Pull what a registry has, in ten steps."""
        self.pulls.append(reference)
        if self.refusal:
            raise DriverError(f"cannot pull {reference}: {self.refusal}")
        try:
            for step in range(11):
                yield PullProgress(step * MIB, 10 * MIB)
                await self.gate.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        found = next(one for name, one in self.remote.items() if reference in (name, one.digest))
        self.there[reference] = found

    async def pin(self, id: str, *, is_pulled: bool = False) -> None:
        """Pin an image, also for a caller that is cancelled: the engine's calls run in threads."""
        await asyncio.shield(asyncio.ensure_future(self._pin(id, is_pulled=is_pulled)))

    async def _pin(self, id: str, *, is_pulled: bool) -> None:
        await self._turn()
        self.pins.add(id)
        if is_pulled:
            self.pulled.add(id)

    async def pinned(self) -> frozenset[str]:
        """Return the pins."""
        return frozenset(self.pins)

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Keep these pins only."""
        await self._turn()
        self.pins &= set(ids)

    async def _turn(self) -> None:
        self.tagging += 1
        await self.tags.wait()
        self.tagging -= 1

    async def prune(self, ids: Collection[str]) -> list[RemovedImage]:
        """Remove what was pulled."""
        gone = self.pulled - set(ids)
        names = {id: tuple(n for n, one in self.there.items() if one.id == id) for id in gone}
        self.there = {name: one for name, one in self.there.items() if one.id not in gone}
        self.pulled -= gone
        return [RemovedImage(id, names[id], 10 * MIB) for id in sorted(gone)]
