"""Rollout: moves a function's traffic to another revision, which is warm by then if it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from admin.deploy.changes import Changes
from admin.deploy.operations import SWITCH, Phase
from admin.pool_sync import CompiledOf, binding, pool_spec
from admin.store import Store
from pool_manager.manager import WARM_S as WAIT_S
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.compatibility import breaks
from registry.errors import Incompatible, ModelRefused, ServerRefused
from registry.model.functions import ExchangeLimits, Function
from registry.model.revisions import Revision
from registry.tasks import Tasks

LINES = 20
WARM_S = 3600.0
"""Upper bound of the wait. The pool manager ends a slow load much earlier, and reports a lack of
room at once."""
CLEAR_S = 5.0
"""Max seconds to wait for replicas to stop that are no longer needed."""
AWAKE = frozenset({"warm", "waking"})
READY = "warm before traffic moved"
DRAIN = "drain"
"""Phase in which a server's old revision finishes its open exchanges."""
NO_ROOM = "no room for both"
QUIET_S = 2.0
"""Seconds without a reported call after which a server has no open exchange. Gateways report calls
that did not wait up to a second late."""
LOOK_S = 0.25
"""Seconds between two looks at the reported calls."""


class Rollout:
    """Warms the new revision, then moves the traffic. If both revisions do not fit on the device,
    the traffic moves first and calls are held while the new revision replaces the old one. The old
    revision of a server function serves until it has no open exchange, at most for `drain_s`."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        changes: Changes,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        compiled_of: CompiledOf = lambda _: (),
    ) -> None:
        """`pause` is awaited between two polls of a server's calls. `compiled_of` returns the
        compiled models of a revision."""
        self._pause = pause
        self._compiled_of = compiled_of
        self._store = store
        self._manager = manager
        self._changes = changes
        self._tasks = Tasks("rollouts")

    async def close(self) -> None:
        """Stop waiting for revisions to become warm."""
        await self._tasks.close()

    def is_awake(self, name: str) -> bool:
        """Return whether the function has a warm replica, or one that is waking."""
        current = self._store.catalog.find(name)
        return current is not None and self._state(current.revision.key) in AWAKE

    async def to(
        self,
        target: Deployed,
        phase: Phase,
        settings: Function | None = None,
        *,
        was_awake: bool = False,
        now: bool = False,
    ) -> str:
        """Move the traffic to `target`, with `settings` if given; return a text on its warm-up.

        `was_awake`: the function was awake before the operation began. `now`: the old revision of a
        server function does not finish its exchanges first. Raises ModelRefused, without moving the
        traffic, if `target` cannot be made warm.
        """
        current = self._store.catalog.resolve(target.revision.name)
        await phase("warm")
        to_warm = was_awake or self.is_awake(target.revision.name)
        how = await self._warm(current, target, settings or current.function, to_warm)
        if how.startswith(NO_ROOM) and current.revision.server and to_warm:
            how = await self._make_room(current, target, phase, now)
        await phase(SWITCH)
        await self._changes.move(target, settings)
        if how.startswith(NO_ROOM):
            # Request a replica now: without a call nothing else would, and a warm function is cold.
            wait_s = _drain_s(current) if current.revision.server else 0.0
            warming = self._manager.warm(target.revision.key, timeout_s=max(WAIT_S, wait_s))
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
            return f"{NO_ROOM}: {who}, calls are held"
        refusal = ServerRefused if new.server else ModelRefused
        raise refusal(
            f"{new.ref} does not become ready: {reason}; calls still go to {old.ref}",
            detail={"stage": "warm"},
            admin_detail={"log_tail": await log_tail(self._manager, new.name)},
        )

    async def _make_room(self, current: Deployed, target: Deployed, phase: Phase, now: bool) -> str:
        """Let the old revision of a server function finish its open exchanges, unless `now`; return
        a text on the outcome, READY if there was room for both in the end."""
        old, new = current.revision, target.revision
        if now:
            return f"{NO_ROOM}: {old.ref} makes room at once, calls are held"
        await phase(DRAIN)
        limit_s = _drain_s(current)
        ended = await self._is_quiet_within(old.key, limit_s)
        outcome, _ = await self._manager.warm(new.key, beside=True, timeout_s=WARM_S)
        if outcome == "ready":
            return READY
        left = self._manager.load(old.key).in_flight
        what = "had no open exchange left" if ended else f"had {left} open exchanges"
        limit = "" if ended else f" after {limit_s:g} s (drain_s)"
        return f"{NO_ROOM}: {old.ref} {what}{limit} and makes room, calls are held"

    async def _is_quiet_within(self, key: str, limit_s: float) -> bool:
        """Wait until a pool has had no call for QUIET_S; return False if that takes `limit_s`."""
        quiet_s = 0.0
        for _ in range(round(limit_s / LOOK_S)):
            quiet_s = 0.0 if self._manager.load(key).busy else quiet_s + LOOK_S
            if quiet_s >= QUIET_S:
                return True
            await self._pause(LOOK_S)
        return False

    async def _clear(self, keys: set[str], name: str) -> bool:
        """Wait for replicas that are stopping anyway; return whether any has stopped.

        The trial has just ended and may still hold its device. Idle replicas of other revisions
        linger for some seconds in case their traffic returns.
        """
        others = {one.revision.key for one in self._store.catalog.revisions(name)} - keys
        there = self._going(others)

        def are_gone() -> bool:
            # Repeat the request: the manager learns of a call's end up to a second late.
            for key in others:
                self._manager.sleep(key)
            return not there & self._going(others)

        # Replicas may remain: callers can address a revision by its number.
        await wait_until(self._manager, are_gone, CLEAR_S)
        return bool(there - self._going(others))

    def _going(self, keys: set[str]) -> set[str]:
        """Return the replicas of these pools, and all replicas that are stopping."""
        return {
            one.id
            for one in self._manager.replicas()
            if one.pool in keys or not (one.is_coming or one.can_serve)
        }

    def _state(self, key: str) -> str:
        pool = self._manager.pool(key)
        return pool[0].state if pool else "cold"

    def _define(self, current: Deployed, target: Deployed, settings: Function) -> None:
        """Define the target's pool with the settings that it will have with the traffic."""
        function = replace(settings, revision=current.revision.number)
        waiting = replace(target, function=function)
        bundle = self._store.bundles[target.revision.bundle]
        compiled = self._compiled_of(waiting)
        spec = pool_spec(waiting, bundle, compiled)
        self._manager.define(spec, binding(waiting, bundle, compiled))


def _drain_s(deployed: Deployed) -> float:
    return (deployed.function.exchange or ExchangeLimits()).drain_s


def check_compatible(current: Revision, target: Revision, breaking: bool) -> None:
    """Raise Incompatible, with the breaking changes, if callers of `current` could not call
    `target` and `breaking` is not set."""
    found = [] if breaking else breaks(current, target)
    if found:
        raise Incompatible(
            f"compared with {current.ref}: {'; '.join(found)}; pass --breaking to allow it",
            detail={"breaks": found},
        )


async def wait_until(manager: Manager, condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether `condition` holds within `seconds`; it is checked at each manager event."""
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
    """Return at most `count` lines from the end of an output."""
    return text.decode("utf-8", "replace").splitlines()[-count:]


async def log_tail(manager: Manager, name: str, count: int = LINES) -> list[str]:
    """Return at most `count` log lines of the function's replica that started last."""
    logs = await manager.logs(name)
    return last_lines(logs[-1][1], count) if logs else []
