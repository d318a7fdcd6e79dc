"""What deploys and operators wait for: trials, and pools to be warm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from pool_manager.core import commands, events
from pool_manager.core.commands import WarmOutcome
from registry.errors import ModelRefused, ShuttingDown

TRIAL_S = 7200.0
"""How long a trial may take, the wait for a device included."""


class Warmed(NamedTuple):
    """Whether a pool has a ready replica, and why not."""

    outcome: WarmOutcome
    reason: str


class Orders:
    """Futures by pool, kept until the machine answers, time is over, or nobody waits any more."""

    def __init__(self, feed: Callable[[events.Event], None]) -> None:
        self._feed = feed
        self._trials: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._warm: dict[str, asyncio.Future[Warmed]] = {}

    async def trial(self, key: str, begin: Callable[[], None]) -> dict[str, Any]:
        """The report of a trial that `begin` asks for.

        Raises ModelRefused with the reason, its stage and the last log lines.
        """
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

        Who asks for the same pool at the same time waits for the same answer.
        """
        future = self._warm.get(key)
        if future is None:
            future = self._warm[key] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda _: self._warm.pop(key, None))
            self._feed(events.WarmAsked(key, beside))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            self._feed(events.WarmDropped(key))
            if not future.done():
                future.set_result(Warmed("no_room", f"not ready within {timeout_s:g} s"))
            return future.result()

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
            trial.set_exception(ModelRefused(command.reason, detail=detail, admin_detail=logs))

    def end_warm(self, command: commands.EndWarm) -> None:
        """A pool is warm, or will not be."""
        future = self._warm.get(command.key)
        if future is not None and not future.done():
            future.set_result(Warmed(command.outcome, command.reason))

    def close(self) -> None:
        """Tell everybody who waits that the server goes."""
        for trial in self._trials.values():
            if not trial.done():
                trial.set_exception(ShuttingDown("the server is shutting down"))
        for future in list(self._warm.values()):
            if not future.done():
                future.set_result(Warmed("failed", "the server is shutting down"))
