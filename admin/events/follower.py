"""One watcher's place in the news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Follower:
    """Wait for `news`, then `take` what is to be sent: a follower that is slow gets what is there
    when he asks, and a whole picture where too much has passed."""

    def __init__(
        self,
        read: Callable[[int, str], tuple[bytes, int]],
        left: Callable[[Follower], None],
        seq: int,
        about: str,
    ) -> None:
        """`read(seq, about)` gives what came after `seq`, and the new number; `left` is told at
        the end."""
        self._read = read
        self._left = left
        self._seq = seq
        self._about = about
        self._beat = b""
        self._news = asyncio.Event()
        self._news.set()
        self.is_closed = False

    async def news(self) -> None:
        """Return when there is something to take, or it is over."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> bytes:
        """Events to send now; none are left out."""
        data, self._seq = self._read(self._seq, self._about)
        beat, self._beat = self._beat, b""
        return data + beat

    def wake(self) -> None:
        """There is something to take."""
        self._news.set()

    def beat(self, event: bytes) -> None:
        """A second has passed; of several that were not taken only the last counts."""
        self._beat = event
        self._news.set()

    def close(self) -> None:
        """It is over; whoever waits for news hears of it."""
        self.is_closed = True
        self._news.set()

    def leave(self) -> None:
        """Nobody follows here any more."""
        self._left(self)
