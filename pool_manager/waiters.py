"""Waiting: for trials, for warm pools, for an engine that has gone away."""

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

log = structlog.get_logger()

TRIAL_S = 7200.0
"""How long a trial may take, the wait for a device included."""
KILLED = ("was killed by SIGKILL", "was killed by SIGTERM")
"""How drivers begin the reason of an end by these signals."""
STOPPING = "the server is shutting down"
RETRY_S = 1.0
"""Seconds between two requests to an engine that does not answer."""


class PendingTrials:
    """The trials that deploys wait for, by pool."""

    def __init__(self) -> None:
        self._reports: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._closed = False

    async def wait(self, key: str, begin: Callable[[], None]) -> dict[str, Any]:
        """Call `begin` and wait for the report of the trial that it asks for.

        Raises ModelRefused with the reason, its stage and the last log lines; TrialKilled where the
        replica was killed from outside; ShuttingDown.
        """
        if self._closed:
            raise ShuttingDown(STOPPING)
        report: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reports[key] = report
        try:
            begin()
            async with asyncio.timeout(TRIAL_S):
                return await report
        except TimeoutError:
            raise ModelRefused(f"its trial had not ended after {TRIAL_S:.0f} s") from None
        finally:
            del self._reports[key]

    def end(self, command: commands.EndTrial) -> None:
        """A trial is over."""
        report = self._reports.get(command.key)
        if report is None or report.done():
            return
        if command.report:
            report.set_result(command.report)
        else:
            detail = {"stage": command.stage or "start"}
            logs = {"log_tail": list(command.log_tail)}
            kind = TrialKilled if _is_killed(command) else ModelRefused
            report.set_exception(kind(command.reason, detail=detail, admin_detail=logs))

    def close(self) -> None:
        """The server stops: every wait ends with ShuttingDown, later ones at once."""
        self._closed = True
        for report in self._reports.values():
            if not report.done():
                report.set_exception(ShuttingDown(STOPPING))


def _is_killed(command: commands.EndTrial) -> bool:
    """Whether a trial ended by KILL or TERM, which no fault of a model's own brings about. Where
    the kernel killed it for its memory cap, the driver says so instead."""
    return not command.stage and command.reason.startswith(KILLED)


class Warmed(NamedTuple):
    """Whether a pool has a ready replica, and why not."""

    outcome: WarmOutcome
    reason: str


@dataclass(slots=True)
class _Request:
    """One wish for a warm pool, shared by all who have it: `waiters` in all, `patient` those of
    them who accept waiting for room. `beside` is what the machine was asked last."""

    answer: asyncio.Future[Warmed]
    beside: bool = False
    waiters: int = 0
    patient: int = 0

    def count(self, by: int, *, beside: bool) -> None:
        """A waiter joins (1) or leaves (-1)."""
        self.waiters += by
        self.patient += 0 if beside else by


class WarmWaiters:
    """Those who wait for a pool to have a ready replica, by pool."""

    def __init__(self, emit: Callable[[events.Event], None]) -> None:
        self._emit = emit
        self._requests: dict[str, _Request] = {}
        self._closed = False

    async def wait(self, key: str, *, beside: bool, timeout_s: float) -> Warmed:
        """Wait until a pool has a ready replica, or cannot have one, or `timeout_s` is over.

        Waiters for one pool share the answer; when the last has left, WarmDropped is emitted. A
        waiter without `beside` makes the request wait for room until it leaves.
        """
        if self._closed:
            return Warmed("failed", STOPPING)
        request = self._requests.get(key)
        if request is None or (request.beside and not beside):
            if request is None:
                request = _Request(asyncio.get_running_loop().create_future())
                self._requests[key] = request
            request.beside = beside
            self._emit(events.WarmRequested(key, beside))
        request.count(1, beside=beside)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(request.answer)
        except TimeoutError:
            return Warmed("no_room", f"not ready within {timeout_s:g} s")
        finally:
            request.count(-1, beside=beside)
            self._left(key, request)

    def _left(self, key: str, request: _Request) -> None:
        """A waiter has left: emit what the others want, if that is less."""
        if request.answer.done():
            return
        if not request.waiters:
            del self._requests[key]
            self._emit(events.WarmCancelled(key))
        elif not request.patient and not request.beside:
            request.beside = True
            self._emit(events.WarmRequested(key, True))

    def end(self, command: commands.EndWarm) -> None:
        """A pool is warm, or will not be."""
        request = self._requests.pop(command.key, None)
        if request is not None:
            request.answer.set_result(Warmed(command.outcome, command.reason))

    def close(self) -> None:
        """The server stops: every wait fails, later ones at once."""
        self._closed = True
        for request in self._requests.values():
            request.answer.set_result(Warmed("failed", STOPPING))
        self._requests.clear()


class EngineWatch:
    """Asks the driver for its list until it answers; one request at a time."""

    def __init__(
        self,
        driver: Driver,
        emit: Callable[[events.Event], None],
        tasks: Tasks,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`pause` is awaited between two requests."""
        self._driver = driver
        self._emit = emit
        self._tasks = tasks
        self._pause = pause
        self._is_watching = False

    def begin(self, reason: str) -> None:
        """The engine does not answer: EngineBack is emitted once it does."""
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
        self._emit(events.EngineBack(frozenset(running)))
