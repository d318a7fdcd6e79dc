"""One watcher's place in the news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Read = Callable[[int, str], tuple[list[bytes], int]]


class Follower:
    """Wait for `news`, then `take` what is to be sent: a follower that is slow gets what is there
    when he asks, and a whole picture where too much has passed."""

    def __init__(self, read: Read, seq: int, about: str) -> None:
        """`read(seq, about)` gives what came after `seq`, in pieces, and the new number."""
        self._read = read
        self._seq = seq
        self._about = about
        self._beat = b""
        self._news = asyncio.Event()
        self._news.set()

    async def news(self) -> None:
        """Return when there is something to take."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> list[bytes]:
        """Events to send now, in pieces of whole ones; none are left out."""
        pieces, self._seq = self._read(self._seq, self._about)
        beat, self._beat = self._beat, b""
        return [*pieces, beat] if beat else pieces

    def wake(self) -> None:
        """There is something to take."""
        self._news.set()

    def beat(self, event: bytes) -> None:
        """A second has passed; of several that were not taken only the last counts."""
        self._beat = event
        self._news.set()
