"""Waiting for the pool manager."""

from __future__ import annotations

import asyncio
from pathlib import Path

from admin.deploy.rollout import wait_until
from tests.support.operator import UNTIL_S, operating

KEY = "default/digits@1"


async def test_news_end_the_wait(tmp_path: Path) -> None:
    """The condition is looked at again when a pool has changed, and nobody listens afterwards."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        manager = operator.manager
        before = len(manager._publisher.messages)

        def is_warm() -> bool:
            pool = manager.pool(KEY)
            return pool is not None and pool[0].state == "warm"

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait_until(manager, is_warm, UNTIL_S))
            group.create_task(manager.warm(KEY))

        assert waiting.result()
        assert len(manager._publisher.messages) == before


async def test_time_ends_the_wait(tmp_path: Path) -> None:
    """What does not come about is told."""
    async with operating(tmp_path) as operator:
        assert not await wait_until(operator.manager, lambda: False, 0)
