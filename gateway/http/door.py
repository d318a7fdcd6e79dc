"""Counts the requests inside, and is shut when the server goes."""

from __future__ import annotations

import asyncio

from gateway.answers.reply import CLOSE
from registry.errors import ShuttingDown


class Door:
    """Who is let in leaves again, once. Used by one thread."""

    def __init__(self) -> None:
        self.is_open = True
        self.headers: tuple[tuple[str, str], ...] = ()
        """Of every answer. Once the server goes, each is the last one of its connection."""
        self.inside = 0
        self._empty = asyncio.Event()

    def enter(self) -> None:
        """Come in. Raises ShuttingDown once the door is shut."""
        if not self.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        self.inside += 1

    def leave(self) -> None:
        """Whoever entered goes."""
        self.inside -= 1
        if not self.inside:
            self._empty.set()

    async def shut(self) -> None:
        """Let nobody in any more; returns when the last one has left."""
        self.is_open = False
        await self.empty()

    async def empty(self) -> None:
        """Return when nobody is inside. Until then requests of connections that are there are let
        in, but each is the last one of its connection."""
        self.headers = (CLOSE,)
        while self.inside:
            self._empty.clear()
            await self._empty.wait()
