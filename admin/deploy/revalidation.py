"""Keeps verdicts of trials current after a deploy: run-time refutations, and changed rules.

A profile of an earlier release is not trusted: neither its proof that rows may be joined, nor its
choice of a candidate. Once its function has been called, its model is tried again in a trial
replica as for a deploy, because the rules need runs of every session that will serve. One trial
runs at a time, and only on a free device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import structlog

from admin.deploy.changes import Changes
from admin.deploy.plan import Plan
from admin.deploy.verify import Verification
from admin.store import Store
from pool_manager.manager import Manager
from registry.batching import is_stale, summary
from registry.catalog import Deployed
from registry.errors import FnError, StoreUnavailable
from registry.spec import is_outdated
from registry.tasks import Tasks

log = structlog.get_logger()

LOOK_S: Final = 5.0
"""Seconds between two checks for a stale function with calls, and between two store attempts."""


class Revalidation:
    """Background revalidation of one server. `pause` is awaited between two checks."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        changes: Changes,
        verification: Verification,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._manager = manager
        self._changes = changes
        self._verification = verification
        self._pause = pause
        self._tasks = Tasks("revalidation")
        self._numbers = count(1)
        self._stale: set[str] = set()
        self._called: set[str] = set()
        self._refuted: dict[str, str] = {}
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Subscribe to refutations, and start the checks for functions with outdated verdicts."""
        self._unsubscribe = self._manager.subscribe_refutations(self._refute)
        every = self._store.catalog.every()
        self._stale = {one.revision.key for one in every if _is_stale(one)}
        if self._stale:
            self._tasks.spawn("retry stale profiles", self._retry_stale())

    async def close(self) -> None:
        """Stop. The next server finds the stale functions again."""
        self._unsubscribe()
        await self._tasks.close()

    def _refute(self, key: str, reason: str) -> None:
        """Store a refutation in the background; each pool reports only one."""
        is_new = not self._refuted
        self._refuted[key] = reason
        if is_new:
            self._tasks.spawn("store refutations", self._store_refutations())

    async def _store_refutations(self) -> None:
        """Store all refutations, with retries. The pools' replicas have stopped by now."""
        while self._refuted:
            key, reason = next(iter(self._refuted.items()))
            try:
                await self._changes.keep_refutation(key, reason)
                del self._refuted[key]
            except StoreUnavailable as error:
                log.error("a refutation cannot be stored yet", pool=key, reason=error.message)
                await self._pause(LOOK_S)

    async def _retry_stale(self) -> None:
        while self._stale:
            await self._pause(LOOK_S)
            found = self._next()
            if found is not None:
                await self._retry(found)

    def _next(self) -> Deployed | None:
        """Return a stale revision that was called and whose trial fits a free device, if any."""
        states = {key: pool[0].state for key in self._stale if (pool := self._manager.pool(key))}
        self._stale &= states.keys()
        self._called &= self._stale
        self._called |= {key for key, state in states.items() if state != "cold"}
        free = {one.device.kind for one in self._manager.occupancies() if one.state == "free"}
        for key in sorted(self._called):
            namespace, _, ref = key.partition("/")
            found = self._store.catalog.find(ref, namespace)
            if found is None or not _is_stale(found):
                self._stale.discard(key)
            elif free and found.revision.device.kind in {"any", *free}:
                return found
        return None

    async def _retry(self, old: Deployed) -> None:
        """Run one trial. If it fails, the function keeps running as it does, one request at a time
        without a current proof for its rows."""
        key, revision = old.revision.key, old.revision
        self._stale.discard(key)
        plan = Plan(old.function, revision, self._store.bundles[revision.bundle])
        try:
            verified = await self._verification.verify(plan, f"again-{next(self._numbers)}")
            await self._changes.keep_profile(revision, verified.profile)
        except FnError as error:
            self._manager.note(key, f"the trial by current rules failed: {error.message}")
            return
        self._manager.note(key, f"batching by current rules: {summary(revision, verified.profile)}")
        if found := verified.profile.optimised:
            self._manager.note(key, f"precision by current rules: {found.table['chosen']}")


def _is_stale(deployed: Deployed) -> bool:
    return is_stale(deployed.revision, deployed.profile) or is_outdated(deployed)
