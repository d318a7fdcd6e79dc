"""Turns at work of deploys, shared by the keys that ask for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from registry.shares import Shares


class Turns:
    """Turns, at most `places` at once, as `Shares`. A party that may have no more of them waits.

    A free turn goes to the party that has fewest; among equals each gets one after the other.
    """

    def __init__(self, what: str, places: int) -> None:
        self._shares = Shares(what, places)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def is_free(self, party: str) -> bool:
        """Return whether the party would not wait for a turn."""
        return self._shares.has_room(party)

    def resize(self, places: int) -> None:
        """Set the max turns at once; none that is taken ends."""
        self._shares.places = places
        self._grant()

    async def take(self, party: str) -> None:
        """Return once the party has a turn, until `give_back`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(party, turn)
            else:
                self.give_back(party)
            raise

    def give_back(self, party: str) -> None:
        """Give back a turn of the party, to the next one that waits."""
        self._shares.give_back(party)
        self._grant()

    @asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Have a turn within the block, which waits for it."""
        await self.take(party)
        try:
            yield
        finally:
            self.give_back(party)

    def _grant(self) -> None:
        while ready := [party for party in self._waiting if self._shares.has_room(party)]:
            party = min(ready, key=self._shares.taken)
            turn = self._waiting[party][0]
            self._forget(party, turn)
            if party in self._waiting:
                self._waiting[party] = self._waiting.pop(party)  # behind the others
            # A cancelled one has yet to take itself out.
            if not turn.cancelled():
                self._shares.take(party)
                turn.set_result(None)

    def _forget(self, party: str, turn: asyncio.Future[None]) -> None:
        own = self._waiting.get(party)
        if own is None or turn not in own:
            return
        own.remove(turn)
        if not own:
            del self._waiting[party]
