"""Tests of waits that a shutdown ends."""

from __future__ import annotations

import asyncio

import pytest

from gateway.waits import WAITS_MAX, OpenWaits
from registry.errors import QueueFull, ShuttingDown


async def test_a_wait_returns_what_it_waited_for() -> None:
    """Without a shutdown a wait has the result of its work."""
    assert await OpenWaits().run(asyncio.to_thread(lambda: "done")) == "done"


async def test_a_shutdown_ends_open_waits_and_later_ones() -> None:
    """Each wait ends with the problem of a server that shuts down, its work cancelled."""
    waits, cancelled = OpenWaits(), asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    open_wait = asyncio.create_task(waits.run(endless()))
    await asyncio.sleep(0)
    await waits.stop()

    with pytest.raises(ShuttingDown):
        await open_wait
    assert cancelled.is_set()
    with pytest.raises(ShuttingDown):
        await waits.run(asyncio.Event().wait())


async def test_waits_are_shared_by_parties() -> None:
    """A party with half of the waits is refused another one, and the next party is not."""
    waits, end = OpenWaits(), asyncio.Event()
    tasks = [asyncio.create_task(waits.run(end.wait(), "a")) for _ in range(WAITS_MAX // 2)]
    await asyncio.sleep(0)

    with pytest.raises(QueueFull, match="requests wait"):
        await waits.run(end.wait(), "a")
    tasks.append(asyncio.create_task(waits.run(end.wait(), "b")))
    await asyncio.sleep(0)
    end.set()

    assert all(await asyncio.gather(*tasks))
    assert await waits.run(end.wait(), "a")
