"""What deploys and operators wait for: trials, and pools to be warm.

Waits for a driver's engine that has gone away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from pool_manager.core import commands, events
from pool_manager.core.commands import WarmOutcome
from pool_manager.driver import Driver
from registry.errors import DriverError, ModelRefused, ShuttingDown, TrialKilled
from registry.tasks import Tasks

TRIAL_S = 7200.0
"""How long a trial may take, the wait for a device included."""
KILLED = ("was killed by SIGKILL", "was killed by SIGTERM")
"""How drivers begin the reason of an end by these signals."""
GOING = "the server is shutting down"


class Warmed(NamedTuple):
    """Whether a pool has a ready replica, and why not."""

    outcome: WarmOutcome
    reason: str


@dataclass(slots=True)
class _Ask:
    """An answer that is waited for, by how many, and by how many who do not insist on `beside`."""

    answer: asyncio.Future[Warmed]
    beside: bool = False
    waiters: int = 0
    patient: int = 0

    def count(self, by: int, *, beside: bool) -> None:
        """Somebody joins (1) or leaves (-1)."""
        self.waiters += by
        self.patient += 0 if beside else by


class Orders:
    """Futures by pool, kept until the machine answers, time is over, or nobody waits any more."""

    def __init__(self, feed: Callable[[events.Event], None]) -> None:
        self._feed = feed
        self._trials: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._warm: dict[str, _Ask] = {}
        self._closed = False

    async def trial(self, key: str, begin: Callable[[], None]) -> dict[str, Any]:
        """The report of a trial that `begin` asks for.

        Raises ModelRefused with the reason, its stage and the last log lines; TrialKilled where the
        replica was killed from outside; ShuttingDown.
        """
        if self._closed:
            raise ShuttingDown(GOING)
        future = asyncio.get_running_loop().create_future()
        self._trials[key] = future
        try:
            begin()
            async with asyncio.timeout(TRIAL_S):
                result: dict[str, Any] = await future
            return result
        except TimeoutError:
            raise ModelRefused(f"its trial had not ended after {TRIAL_S:.0f} s") from None
        finally:
            del self._trials[key]

    async def warm(self, key: str, *, beside: bool, timeout_s: float) -> Warmed:
        """Wait until a pool has a ready replica, or cannot have one, or `timeout_s` is over.

        Who asks for the same pool at the same time waits for the same answer; when the last of
        them has left, the pool is told. One that does not insist on `beside` ends that for all,
        until it leaves: nobody who insists waits for room any longer than that.
        """
        if self._closed:
            return Warmed("failed", GOING)
        ask = self._warm.get(key)
        if ask is None or (ask.beside and not beside):
            if ask is None:
                ask = self._warm[key] = _Ask(asyncio.get_running_loop().create_future())
            ask.beside = beside
            self._feed(events.WarmRequested(key, beside))
        ask.count(1, beside=beside)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(ask.answer)
        except TimeoutError:
            return Warmed("no_room", f"not ready within {timeout_s:g} s")
        finally:
            ask.count(-1, beside=beside)
            self._left(key, ask)

    def _left(self, key: str, ask: _Ask) -> None:
        """Somebody waits no more: tell the pool what the others want, if that is less."""
        if ask.answer.done():
            return
        if not ask.waiters:
            del self._warm[key]
            self._feed(events.WarmCancelled(key))
        elif not ask.patient and not ask.beside:
            ask.beside = True
            self._feed(events.WarmRequested(key, True))

    def end_trial(self, command: commands.EndTrial) -> None:
        """A trial is over."""
        trial = self._trials.get(command.key)
        if trial is None or trial.done():
            return
        if command.report:
            trial.set_result(command.report)
        else:
            detail = {"stage": command.stage or "start"}
            logs = {"log_tail": list(command.log_tail)}
            kind = TrialKilled if _is_killed(command) else ModelRefused
            trial.set_exception(kind(command.reason, detail=detail, admin_detail=logs))

    def end_warm(self, command: commands.EndWarm) -> None:
        """A pool is warm, or will not be."""
        ask = self._warm.pop(command.key, None)
        if ask is not None:
            ask.answer.set_result(Warmed(command.outcome, command.reason))

    def close(self) -> None:
        """Tell everybody who waits that the server goes."""
        self._closed = True
        for trial in self._trials.values():
            if not trial.done():
                trial.set_exception(ShuttingDown(GOING))
        for ask in self._warm.values():
            ask.answer.set_result(Warmed("failed", GOING))
        self._warm.clear()


def _is_killed(command: commands.EndTrial) -> bool:
    """Whether a trial ended by KILL or TERM, which no fault of a model's own brings about. Where
    the kernel killed it for its memory cap, the driver says so instead."""
    return not command.stage and command.reason.startswith(KILLED)


log = structlog.get_logger()

RETRY_S = 1.0


class EngineWatch:
    """Asks the driver for its list until there is an answer; at most one question at a time."""

    def __init__(
        self,
        driver: Driver,
        feed: Callable[[events.Event], None],
        tasks: Tasks,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`pause` is awaited between two tries."""
        self._driver = driver
        self._feed = feed
        self._tasks = tasks
        self._pause = pause
        self._is_watching = False

    def begin(self, reason: str) -> None:
        """The engine does not answer: EngineBack follows once it does."""
        if self._is_watching:
            return
        self._is_watching = True
        log.error("the engine does not answer", driver=self._driver.kind, reason=reason)
        self._tasks.spawn("engine", self._watch())

    async def _watch(self) -> None:
        while True:
            await self._pause(RETRY_S)
            try:
                running = await self._driver.list()
            except DriverError:
                continue
            except Exception:  # a watch that ended would leave the engine away for ever
                log.exception("the engine's list cannot be read", driver=self._driver.kind)
                continue
            break
        self._is_watching = False
        log.info("the engine is back", driver=self._driver.kind, replicas=len(running))
        self._feed(events.EngineBack(frozenset(running)))
