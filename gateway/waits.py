"""Requests that take long and are no calls: what ends them before their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

from gateway.revocation import cut_revoked
from registry.errors import FnError, QueueFull, ShuttingDown
from registry.shares import Shares
from registry.store.keys import KeyRing

T = TypeVar("T")
RETRY_S: Final = 5.0
WAITS_MAX: Final = 1024
"""Max requests of one kind that wait."""


class OpenWaits:
    """Open waits of one kind, which a shutdown ends. Event loop thread only."""

    def __init__(self) -> None:
        self._is_closing = False
        self._waits: set[asyncio.Timeout] = set()
        self._shares = Shares("requests wait", WAITS_MAX)

    async def run(self, work: Coroutine[Any, Any, T], party: str | None = None) -> T:
        """Return what `work` returns, for a party as in `Shares`, None if it is counted elsewhere.

        Raises ShuttingDown if the server shuts down first, and QueueFull if too many requests wait,
        or too many of the party.
        """
        if party is None:
            return await self._run(work)
        try:
            self._shares.take(party)
        except QueueFull:
            work.close()
            raise
        try:
            return await self._run(work)
        finally:
            self._shares.give_back(party)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
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


class OpenRequest:
    """One request, as `gateway.revocation.OpenForKey`: an upload, a follower, a wait."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.wait = asyncio.timeout(None)
        """The block within which the request is answered."""
        self.error: FnError | None = None
        """Why the request was ended, None if it was not."""

    def fail(self, error: FnError) -> None:
        """End the request with an error; one whose answer has begun is cut off."""
        if self.error is None:
            self.error = error
            self.wait.reschedule(0.0)


class OpenRequests:
    """Requests of the admin API, which end when their key is removed. Event loop thread only."""

    def __init__(self, ring: KeyRing) -> None:
        self._open: set[OpenRequest] = set()
        cut_revoked(ring, lambda: self._open)

    async def run(self, key_id: str, work: Awaitable[T]) -> T:
        """Return the outcome of `work` for a caller. Raises NoKey if the key is removed before."""
        opened = OpenRequest(key_id)
        try:
            async with opened.wait:
                self._open.add(opened)
                try:
                    return await work
                finally:
                    self._open.discard(opened)
        except TimeoutError:
            if opened.error is None:
                raise
            raise opened.error from None
