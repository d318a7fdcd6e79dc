"""Waits for the pool manager to bring something about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pool_manager.manager import Manager


async def news_until(manager: Manager, condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` holds, looked at whenever there is news, within so many seconds."""
    news = asyncio.Event()
    end = manager.subscribe(lambda _message: news.set())
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                news.clear()
                await news.wait()
    except TimeoutError:
        pass
    finally:
        end()
    return condition()
