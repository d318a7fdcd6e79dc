"""Waits of requests for something other than a call, which a shutdown ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from registry.errors import ShuttingDown

T = TypeVar("T")
RETRY_S: Final = 5.0


class OpenWaits:
    """Open waits of one kind. Event loop thread only."""

    def __init__(self) -> None:
        self._is_closing = False
        self._waits: set[asyncio.Timeout] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Raises ShuttingDown if the server shuts down first."""
        try:
            async with asyncio.timeout(0.0 if self._is_closing else None) as wait:
                self._waits.add(wait)
                try:
                    return await work
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            raise ShuttingDown("the server is shutting down", retry_after_s=RETRY_S) from None

    async def stop(self, _app: object = None) -> None:
        """End all waits, and later ones at once (handler of aiohttp's shutdown signal)."""
        self._is_closing = True
        for wait in self._waits:
            wait.reschedule(0.0)
