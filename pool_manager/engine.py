"""Waits for a driver's engine that has gone away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pool_manager.core import events
from pool_manager.driver import Driver
from registry.errors import DriverError
from registry.tasks import Tasks

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
