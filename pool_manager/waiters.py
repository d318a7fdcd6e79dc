"""Waiters for trials, for warm pools, and for an engine that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from pool_manager.core import commands, events
from pool_manager.core.commands import WarmOutcome
from pool_manager.core.trial_room import STAGE
from registry.errors import (
    DriverError,
    FnError,
    HostDown,
    ModelRefused,
    NoRoom,
    ShuttingDown,
    TrialKilled,
)
from registry.model.hosts import LOCAL_HOST
from registry.tasks import Tasks

log = structlog.get_logger()

TRIAL_S = 7200.0
"""Time limit of a trial in seconds, including the wait for a device."""
KILLED = tuple(
    f"{part}was killed by {signal}"
    for part in ("", "lost its server, which ", "lost its sidecar, which ")
    for signal in ("SIGKILL", "SIGTERM")
)
"""Prefixes of the reasons that drivers give for an end by these signals, of any of the replica's
containers."""
STOPPING = "the server is shutting down"
RETRY_S = 1.0
"""Seconds between two requests to an engine that does not answer."""


class PendingTrials:
    """Trials that deploys wait for, by pool key."""

    def __init__(self) -> None:
        self._reports: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._closed = False

    async def wait(self, key: str, begin: Callable[[], None]) -> dict[str, Any]:
        """Call `begin`, which requests a trial, and wait for the trial's report.

        Raises ModelRefused with the reason, the stage and the last log lines; TrialKilled if the
        replica was killed from outside; NoRoom, which says who has the devices; ShuttingDown.
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
        """Finish the wait for a trial with its report or its failure."""
        report = self._reports.get(command.key)
        if report is None or report.done():
            return
        if command.report:
            report.set_result(command.report)
        else:
            detail = {"stage": command.stage or "start"}
            logs = {"log_tail": list(command.log_tail)}
            kind: type[FnError] = NoRoom if command.stage == STAGE else ModelRefused
            kind = TrialKilled if _is_killed(command) else kind
            report.set_exception(kind(command.reason, detail=detail, admin_detail=logs))

    def close(self) -> None:
        """End every wait with ShuttingDown; later waits end at once."""
        self._closed = True
        for report in self._reports.values():
            if not report.done():
                report.set_exception(ShuttingDown(STOPPING))


def _is_killed(command: commands.EndTrial) -> bool:
    """Whether a trial ended by KILL or TERM, which a model cannot cause by itself. For a kill at
    the memory cap the driver gives a different reason."""
    return not command.stage and command.reason.startswith(KILLED)


class Warmed(NamedTuple):
    """Outcome of a warm-up, and its reason."""

    outcome: WarmOutcome
    reason: str


@dataclass(slots=True)
class _Request:
    """A pending request for a warm pool, shared by its waiters. `waiters` counts all of them,
    `patient` those that accept a wait for room. `beside` was sent in the last WarmRequested."""

    answer: asyncio.Future[Warmed]
    beside: bool = False
    waiters: int = 0
    patient: int = 0

    def count(self, by: int, *, beside: bool) -> None:
        """A waiter joins (1) or leaves (-1)."""
        self.waiters += by
        self.patient += 0 if beside else by


class WarmWaiters:
    """Waiters for a ready replica, by pool key."""

    def __init__(self, emit: Callable[[events.Event], None]) -> None:
        self._emit = emit
        self._requests: dict[str, _Request] = {}
        self._closed = False

    async def wait(
        self, key: str, *, beside: bool, timeout_s: float, is_parked: bool = False
    ) -> Warmed:
        """Wait until a pool has a ready replica, cannot have one, or `timeout_s` has passed.

        Waiters for one pool share the answer; when the last one leaves, WarmCancelled is emitted.
        While there is a waiter without `beside`, the request waits for room. `is_parked`: the
        replica that is to wake is parked.
        """
        if self._closed:
            return Warmed("failed", STOPPING)
        request = self._requests.get(key)
        if request is None or (request.beside and not beside):
            if request is None:
                request = _Request(asyncio.get_running_loop().create_future())
                self._requests[key] = request
            request.beside = beside
            self._emit(
                events.UnparkRequested(key) if is_parked else events.WarmRequested(key, beside)
            )
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
        """After a waiter has left, cancel the request if it was the last one, or reduce it to
        `beside` if no remaining waiter accepts a wait for room."""
        if request.answer.done():
            return
        if not request.waiters:
            del self._requests[key]
            self._emit(events.WarmCancelled(key))
        elif not request.patient and not request.beside:
            request.beside = True
            self._emit(events.WarmRequested(key, True))

    def end(self, command: commands.EndWarm) -> None:
        """Answer all waiters for a pool."""
        request = self._requests.pop(command.key, None)
        if request is not None:
            request.answer.set_result(Warmed(command.outcome, command.reason))

    def close(self) -> None:
        """Fail every wait; later waits fail at once."""
        self._closed = True
        for request in self._requests.values():
            request.answer.set_result(Warmed("failed", STOPPING))
        self._requests.clear()


class EngineWatch:
    """Polls the list of a host until its engine answers again; one request at a time."""

    def __init__(
        self,
        running: Callable[[str], Awaitable[set[str]]],
        emit: Callable[[events.Event], None],
        tasks: Tasks,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`running` returns what runs on a host; `pause` is awaited between two requests."""
        self._running = running
        self._emit = emit
        self._tasks = tasks
        self._pause = pause
        self._watched: set[str] = set()

    def begin(self, reason: str, host: str = LOCAL_HOST) -> None:
        """Start polling an engine that does not answer; EngineBack is emitted once it does."""
        if host in self._watched:
            return
        self._watched.add(host)
        log.error("the engine does not answer", host=host, reason=reason)
        self._tasks.spawn(f"engine of {host}", self._watch(host))

    async def _watch(self, host: str) -> None:
        running = None
        while running is None:
            await self._pause(RETRY_S)
            try:
                running = await self._running(host)
            except HostDown:
                # The host says that its engine answers when it is up again.
                self._watched.discard(host)
                return
            except DriverError:
                continue
            except Exception:  # if the watch ended, EngineBack would never be emitted
                log.exception("the engine's list cannot be read", host=host)
        self._watched.discard(host)
        log.info("the engine is back", host=host, replicas=len(running))
        self._emit(events.EngineBack(frozenset(running), host))
