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


class OpenRequest:
    """One request, as `gateway.revocation.OpenForKey`: an upload, a follower, a wait."""

    def __init__(self, key_id: str = "", error: FnError | None = None) -> None:
        """`error`: why the request ends at once, None if it does not."""
        self.key_id = key_id
        self._wait = asyncio.timeout(None if error is None else 0.0)
        self._error = error

    def fail(self, error: FnError) -> None:
        """End the request with an error; one whose answer has begun is cut off."""
        if self._error is None:
            self._error = error
            self._wait.reschedule(0.0)

    async def run(self, opened: set[OpenRequest], work: Awaitable[T]) -> T:
        """Return the outcome of `work`, during which the request is `opened`. Raises the error with
        which it was ended before."""
        try:
            async with self._wait:
                opened.add(self)
                try:
                    return await work
                finally:
                    opened.discard(self)
        except TimeoutError:
            if self._error is None:
                raise
            raise self._error from None


class OpenWaits:
    """Open waits of one kind, which a shutdown ends. Event loop thread only."""

    def __init__(self) -> None:
        self._is_closing = False
        self._waits: set[OpenRequest] = set()
        self._shares = Shares("requests wait", WAITS_MAX)

    async def run(self, work: Coroutine[Any, Any, T], party: str | None = None) -> T:
        """Return what `work` returns, for a party as in `Shares`, None if it is counted elsewhere.

        Raises ShuttingDown if the server shuts down first, and QueueFull if too many requests wait,
        or too many of the party.
        """
        opened = OpenRequest(error=shutting_down() if self._is_closing else None)
        if party is None:
            return await opened.run(self._waits, work)
        try:
            self._shares.take(party)
        except QueueFull:
            work.close()
            raise
        try:
            return await opened.run(self._waits, work)
        finally:
            self._shares.give_back(party)

    async def stop(self, _app: object = None) -> None:
        """End all waits, and later ones at once (handler of aiohttp's shutdown signal)."""
        self._is_closing = True
        for wait in self._waits:
            wait.fail(shutting_down())


def shutting_down() -> ShuttingDown:
    """Return the error of requests that a shutdown ends."""
    return ShuttingDown("the server is shutting down", retry_after_s=RETRY_S)


class OpenRequests:
    """Requests of the admin API, which end when their key is removed. Event loop thread only."""

    def __init__(self, ring: KeyRing) -> None:
        self._open: set[OpenRequest] = set()
        cut_revoked(ring, lambda: self._open)

    async def run(self, key_id: str, work: Awaitable[T]) -> T:
        """Return the outcome of `work` for a caller. Raises NoKey if the key is removed before."""
        return await OpenRequest(key_id).run(self._open, work)
