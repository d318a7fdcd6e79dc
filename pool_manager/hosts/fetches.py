"""Fetches of a host's replicas, for starts, as the door has served them: shown, and measured.

What is served is looked at from time to time, as the door counts it in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from hosts.speed import Speed
from pool_manager.core import events
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.transfers import Transfers

LOOK_S: Final = 1.0
"""Seconds between two looks. A fetch that is shorter is not shown."""
SILENT_S: Final = 300.0
"""Seconds without progress after which a fetch is not looked at any more: its replica has lost it,
and has not said so."""


class Fetches:
    """The fetches of one host's replicas."""

    def __init__(
        self,
        host: str,
        served: Callable[[str], int],
        services: HostServices,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`served(id)` returns the bytes of files that a replica was sent so far. `pause` is
        awaited between two looks."""
        self._host, self._served, self._services = host, served, services
        self._pause = pause
        self._speed = Speed()
        self._running: dict[str, asyncio.Task[None]] = {}
        self.transfers = Transfers(lambda: services.changed(host))
        """The fetches in progress."""

    def begin(self, id: str, total_bytes: int) -> None:
        """Follow the fetch of a replica that is about to be told what to fetch."""
        self.end(id)
        if total_bytes:
            follow = self._follow(id, self._served(id), total_bytes)
            self._running[id] = self._services.tasks.spawn(f"fetch of {id}", follow)

    def end(self, id: str) -> None:
        """Follow the fetch of a replica no more: its start is over."""
        if (task := self._running.pop(id, None)) is not None:
            task.cancel()

    async def _follow(self, id: str, base: int, total: int) -> None:
        clock = self._services.clock
        began_s = moved_s = now = clock()
        looks: list[tuple[int, float]] = []
        done = 0
        with self.transfers.of(f"files of {id}", total) as progress:
            while done < total and now - moved_s < SILENT_S:
                await self._pause(LOOK_S)
                before, done = done, min(total, max(done, self._served(id) - base))
                now = clock()
                if done > before:
                    moved_s = now
                if before < done < total:
                    looks = [*looks[:1], (done, now)]
                progress(done)
                self._services.emit(events.FetchReported(id, done, total, now - began_s))
        if done == total:
            self._measure(looks, total, now - began_s)

    def _measure(self, looks: list[tuple[int, float]], total: int, took_s: float) -> None:
        """Measure a fetch that is complete, and tell placement.

        (1) Between its first look and its last one before the end, which is exact.
        (2) One that was too short for two looks: only if it was faster than what is known, since
            when it ended is not known.
        """
        if len(looks) == 2:  # (1)
            (first, first_s), (last, last_s) = looks
            moved_bytes, span_s = last - first, last_s - first_s
        elif total / max(took_s, 0.001) > self._speed.bytes_per_s:  # (2)
            moved_bytes, span_s = total, took_s
        else:
            return
        self._speed.add(moved_bytes, span_s)
        speed = self._speed.bytes_per_s
        self._services.emit(events.HostStocked(self._host, frozenset(), frozenset(), speed))
