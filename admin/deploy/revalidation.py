"""Keeps verdicts of trials current after a deploy: run-time refutations, and changed rules.

A profile of an earlier release is not trusted: neither its proof that rows may be joined, nor its
choice of a candidate. Once its function has been called, its model is tried again in a trial
replica as for a deploy, because the rules need runs of every session that will serve. One trial
runs at a time, and only on a free device.

A profile that was measured on a busy machine is measured again in the same way, once this machine
has been idle for IDLE_S; the trial ends if a call needs a cold start meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import structlog

from admin.deploy import remeasurement
from admin.deploy.changes import Changes
from admin.deploy.plan import Plan
from admin.deploy.verify import Verification
from admin.store import Store
from pool_manager.manager import Manager
from registry.batching import is_stale, summary
from registry.catalog import Deployed
from registry.errors import FnError, StoreUnavailable
from registry.model.profiles import Profile
from registry.spec import is_outdated
from registry.tasks import Tasks
from runtime_image.verification import contention

log = structlog.get_logger()

LOOK_S: Final = 5.0
"""Seconds between two checks for a stale function with calls, and between two store attempts."""
IDLE_S: Final = 30.0
"""Seconds for which the machine was idle before a model is measured again."""
GIVE_WAY_S: Final = 0.5
"""Seconds between two checks whether a function is waking while a model is measured again: the most
that a cold start waits for it, beside the end of its process."""


class Revalidation:
    """Background revalidation of one server. `pause` is awaited between two checks."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        changes: Changes,
        verification: Verification,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        *,
        wall: Callable[[], float],
    ) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._idle = remeasurement.IdleMachine(IDLE_S)
        self._cpus = contention.read()
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
        self._asked: dict[str, bool] = {}
        """Pools whose model an operator has had measured again, and whether at once."""
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Subscribe to refutations, and start the checks for functions with outdated verdicts."""
        self._unsubscribe = self._manager.subscribe_refutations(self._refute)
        every = self._store.catalog.every()
        self._stale = {one.revision.key for one in every if _is_stale(one)}
        if self._stale:
            self._tasks.spawn("retry stale profiles", self._retry_stale())
        self._tasks.root("measure again", self._measure_for_ever())

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

    def measure_again(self, deployed: Deployed, *, now: bool) -> None:
        """Have a model measured again once the machine is idle; with `now` as busy as it is, as
        soon as a device is free."""
        self._asked[deployed.revision.key] = now

    async def _measure_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._measure_next()

    async def _measure_next(self) -> None:
        """Measure the next model again if one is due and the machine has been idle for IDLE_S: all
        its CPUs were free but for a quarter, and no function was waking."""
        found = self._next_due()
        before, self._cpus = self._cpus, contention.read()
        has_cpus = contention.is_free(before, self._cpus, self._cpus.cpus)
        is_idle = found is not None and has_cpus is True and not self._is_waking()
        has_been_idle = self._idle.look(self._cpus.wall_s, is_idle=is_idle)
        if found is None:
            return
        if not (has_been_idle or self._asked.get(found.revision.key)):
            return
        self._asked.pop(found.revision.key, None)
        assert found.profile is not None
        try:
            await self._measure(found, found.profile)
        except StoreUnavailable as error:
            log.error("a measurement cannot be stored yet", reason=error.message)
        self._cpus = contention.read()

    def _next_due(self) -> Deployed | None:
        """Return the revision with traffic that is measured next and fits a free device, if any:
        one that an operator asked for at once, otherwise the one that has been due for longest."""
        now_s = self._wall()
        free = {one.device.kind for one in self._manager.occupancies() if one.state == "free"}
        due = [
            (not self._asked.get(key, False), one.profile.contention.again_s, key, one)
            for one in self._store.catalog.all()
            if one.profile is not None
            and ((key := one.revision.key) in self._asked or _is_due(one, now_s))
            and free
            and one.revision.device.kind in {"any", *free}
        ]
        return min(due, key=lambda entry: entry[:3])[-1] if due else None

    def _is_waking(self) -> bool:
        """Return whether a function waits for a cold start."""
        pools = (self._manager.pool(one.revision.key) for one in self._store.catalog.every())
        return any(pool[0].state == "waking" for pool in pools if pool is not None)

    async def _measure(self, old: Deployed, profile: Profile) -> None:
        """Measure a model once more; store the attempt before, and the outcome after it."""
        key, revision = old.revision.key, old.revision
        begun = remeasurement.begun(profile, self._wall())
        await self._changes.keep_profile(revision, begun)
        plan = Plan(old.function, revision, self._store.bundles[revision.bundle])
        trial = f"measure-{next(self._numbers)}"
        work = self._tasks.spawn(trial, self._verification.verify(plan, trial, measure=True))
        try:
            while not (await asyncio.wait({work}, timeout=GIVE_WAY_S))[0]:
                if self._is_waking():
                    break
            if work.done():
                new = remeasurement.remeasured(begun, work.result().profile, self._wall())
                text = f"measured again: {summary(revision, new)}"
            else:
                new = remeasurement.given_way(begun, self._wall())
                text = "the new measurement ended for a call"
        except FnError as error:
            self._manager.note(key, f"it could not be measured again: {error.message}")
            return
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        found = self._store.catalog.find(revision.ref, revision.namespace)
        if found is None or found.profile != begun:
            return  # removed, or a deploy measured it meanwhile
        await self._changes.keep_profile(revision, new)
        self._manager.note(key, text)


def _is_due(deployed: Deployed, now_s: float) -> bool:
    return remeasurement.is_due(deployed.revision, deployed.profile, now_s)


def _is_stale(deployed: Deployed) -> bool:
    return is_stale(deployed.revision, deployed.profile) or is_outdated(deployed)
