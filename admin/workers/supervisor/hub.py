"""Tells every gateway process what is deployed, which keys there are and how pools are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final

import structlog

from admin.workers.messages import (
    Began,
    Estimates,
    FunctionNow,
    Functions,
    KeyNow,
    Pools,
    Reach,
    encode,
)
from registry.catalog import Catalog, Change, Deployed
from registry.exchange import Expected
from registry.model import Key
from registry.store.keys import KeyRing

log = structlog.get_logger()

TOGETHER: Final = 200
"""Functions in one message of a start."""
SETTLED_S: Final = 2.0
"""How long a change waits until all gateway processes have it. One that takes longer is busy
starting, or about to be given up."""


class Hub:
    """One order for all: what changed is sent when it changes, before whatever depends on it.

    Each worker is told everything when it joins, then every change. `expected` gives a pool's
    estimate.
    """

    def __init__(
        self, catalog: Catalog, ring: KeyRing, expected: Callable[[str], Expected]
    ) -> None:
        self._catalog = catalog
        self._ring = ring
        self._expected = expected
        self._sends: dict[str, Callable[[bytes], None]] = {}
        self._reached: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()

    def open(self) -> Callable[[], None]:
        """Hear of changes from now on, until the returned function is called. To be opened before
        whatever else hears of the catalog: workers are to know a revision before its pool."""
        stack = ExitStack()
        stack.callback(self._catalog.subscribe(self._changed))
        stack.callback(self._ring.subscribe(self._key))
        return stack.close

    def join(self, worker: str, send: Callable[[bytes], None]) -> None:
        """Tell a new worker everything there is, and then what changes."""
        self._sends[worker] = send
        self._reached[worker] = 0
        for key in self._ring.all():
            send(encode(KeyNow(key, True)))
        functions = self._catalog.all()
        for first in range(0, len(functions), TOGETHER):
            now = [self._now(one) for one in functions[first : first + TOGETHER]]
            send(encode(Functions(now)))
            self._send_estimates([send], (one for each in now for one in each.revisions))
        send(encode(Began()))

    def leave(self, worker: str) -> None:
        """A worker is gone: nobody waits for it any more."""
        self._sends.pop(worker, None)
        self._reached.pop(worker, None)
        self._news.set()

    def reached(self, worker: str, number: int) -> None:
        """A worker has in force whatever was sent before that number."""
        if worker in self._reached:
            self._reached[worker] = number
        self._news.set()

    def pools(self, endpoints: bytes) -> None:
        """The manager's Endpoints, for all."""
        self._tell(encode(Pools(endpoints)))

    def estimate_changed(self, pool: str) -> None:
        """A pool's cold start was measured again."""
        self._tell(encode(Estimates({pool: self._expected(pool)})))

    async def settled(self) -> None:
        """Return when every worker has in force whatever was changed before; at most 2 s later."""
        number = next(self._numbers)
        workers = list(self._sends)
        self._tell(encode(Reach(number)))
        try:
            async with asyncio.timeout(SETTLED_S):
                while self._behind(workers, number):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("workers are behind", workers=self._behind(workers, number))

    def _behind(self, workers: list[str], number: int) -> list[str]:
        return [one for one in workers if self._reached.get(one, number) < number]

    def _changed(self, change: Change) -> None:
        revisions = self._catalog.revisions(change.name, change.namespace)
        now = FunctionNow(change.namespace, change.name, list(revisions))
        self._tell(encode(Functions([now])))
        self._send_estimates(list(self._sends.values()), revisions)

    def _key(self, key: Key, is_let_in: bool) -> None:
        self._tell(encode(KeyNow(key, is_let_in)))

    def _now(self, deployed: Deployed) -> FunctionNow:
        namespace, name = deployed.function.namespace, deployed.function.name
        return FunctionNow(namespace, name, list(self._catalog.revisions(name, namespace)))

    def _send_estimates(
        self, sends: list[Callable[[bytes], None]], revisions: Iterable[Deployed]
    ) -> None:
        keys = [one.revision.key for one in revisions]
        if keys and sends:
            message = encode(Estimates({key: self._expected(key) for key in keys}))
            for send in sends:
                send(message)

    def _tell(self, message: bytes) -> None:
        for send in list(self._sends.values()):
            send(message)
