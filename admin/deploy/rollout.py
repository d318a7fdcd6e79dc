"""A rollout: moves a function's traffic to another revision, warm by then if there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from admin.deploy.changes import Changes
from admin.deploy.operations import SWITCH, Phase
from admin.pool_sync import binding, pool_spec
from admin.store import Store
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.compatibility import breaks
from registry.errors import Incompatible, ModelRefused
from registry.model import Function, Revision
from registry.tasks import Tasks

LINES = 20
WARM_S = 3600.0
"""The pool manager ends a load that takes too long much earlier, and says at once where there is
no room: this only bounds the wait."""
CLEAR_S = 5.0
"""How long replicas may take to go that nobody needs any more."""
AWAKE = frozenset({"warm", "waking"})
READY = "warm before traffic moved"


class Rollout:
    """Warm first, then the traffic. Where both revisions do not fit, the traffic first: its calls
    are held while the new one takes the place of the old one."""

    def __init__(self, store: Store, manager: Manager, changes: Changes) -> None:
        self._store = store
        self._manager = manager
        self._changes = changes
        self._tasks = Tasks("rollouts")

    async def close(self) -> None:
        """Wait no more for revisions to become warm."""
        await self._tasks.close()

    def is_awake(self, name: str) -> bool:
        """Whether calls of that function find a replica, or one on its way."""
        current = self._store.catalog.find(name)
        return current is not None and self._state(current.revision.key) in AWAKE

    async def to(
        self,
        target: Deployed,
        phase: Phase,
        settings: Function | None = None,
        *,
        was_awake: bool = False,
    ) -> str:
        """Move the traffic to `target`, with other settings of its function if any are given; what
        was done about its being warm. `was_awake`: its function was, before this was begun.

        Raises ModelRefused, with traffic where it was, where `target` cannot be made warm.
        """
        current = self._store.catalog.resolve(target.revision.name)
        await phase("warm")
        to_warm = was_awake or self.is_awake(target.revision.name)
        how = await self._warm(current, target, settings or current.function, to_warm)
        await phase(SWITCH)
        await self._changes.move(target, settings)
        if how.startswith("no room"):
            # Without a call nobody else would ask for it, and what was warm would be cold.
            warming = self._manager.warm(target.revision.key)
            self._tasks.spawn(f"warm {target.revision.key}", warming)
        return how

    async def _warm(
        self, current: Deployed, target: Deployed, settings: Function, to_warm: bool
    ) -> str:
        old, new = current.revision, target.revision
        if not to_warm and not settings.scaling.min and self._state(new.key) != "warm":
            return f"{new.ref} is cold"
        self._define(current, target, settings)
        outcome, reason = await self._manager.warm(new.key, beside=True, timeout_s=WARM_S)
        if outcome == "no_room" and await self._clear({old.key, new.key}, new.name):
            outcome, reason = await self._manager.warm(new.key, beside=True, timeout_s=WARM_S)
        if outcome == "ready":
            return READY
        if outcome == "no_room":
            who = f"{old.ref} makes room" if self.is_awake(new.name) else reason
            return f"no room for both: {who}, calls are held"
        raise ModelRefused(
            f"{new.ref} does not become ready: {reason}; calls still go to {old.ref}",
            detail={"stage": "warm"},
            admin_detail={"log_tail": await log_tail(self._manager, new.name)},
        )

    async def _clear(self, keys: set[str], name: str) -> bool:
        """Wait for what is about to go anyway; whether anything has.

        The trial has just ended and may still have its device. Replicas of further revisions, which
        nobody calls any more, linger for some seconds in case traffic comes back.
        """
        others = {one.revision.key for one in self._store.catalog.revisions(name)} - keys
        there = self._going(others)

        def are_gone() -> bool:
            # Asked again and again: of a call that has just ended the manager hears in a second.
            for key in others:
                self._manager.sleep(key)
            return not there & self._going(others)

        # Some may stay: somebody calls them by their number.
        await wait_until(self._manager, are_gone, CLEAR_S)
        return bool(there - self._going(others))

    def _going(self, keys: set[str]) -> set[str]:
        """Replicas of these pools, and all that are on their way out."""
        return {
            one.id
            for one in self._manager.replicas()
            if one.pool in keys or not (one.is_coming or one.can_serve)
        }

    def _state(self, key: str) -> str:
        pool = self._manager.pool(key)
        return pool[0].state if pool else "cold"

    def _define(self, current: Deployed, target: Deployed, settings: Function) -> None:
        """Its replica is to run under the settings that come with the traffic."""
        function = replace(settings, revision=current.revision.number)
        waiting = replace(target, function=function)
        bundle = self._store.bundles[target.revision.bundle]
        self._manager.define(pool_spec(waiting, bundle), binding(waiting, bundle))


def check_compatible(current: Revision, target: Revision, breaking: bool) -> None:
    """Raises Incompatible, with what breaks, where callers of `current` could not call `target`,
    unless that is wanted (`breaking`)."""
    found = [] if breaking else breaks(current, target)
    if found:
        raise Incompatible(
            f"compared with {current.ref}: {'; '.join(found)}; say --breaking to mean it",
            detail={"breaks": found},
        )


async def wait_until(manager: Manager, condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` holds, looked at whenever there is news, within so many seconds."""
    changed = asyncio.Event()
    end = manager.subscribe(lambda _message: changed.set())
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                changed.clear()
                await changed.wait()
    except TimeoutError:
        pass
    finally:
        end()
    return condition()


def last_lines(text: bytes, count: int) -> list[str]:
    """At most `count` lines from the end of an output."""
    return text.decode("utf-8", "replace").splitlines()[-count:]


async def log_tail(manager: Manager, name: str, count: int = LINES) -> list[str]:
    """At most `count` lines of the replica of this function that started last."""
    logs = await manager.logs(name)
    return last_lines(logs[-1][1], count) if logs else []
