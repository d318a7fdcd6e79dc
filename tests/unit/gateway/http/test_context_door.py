"""Tests of the door."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.context import Door
from registry.errors import ShuttingDown


async def test_a_shut_door_lets_those_inside_finish() -> None:
    """`shut` returns when the last one has left; nobody comes in any more."""
    door = Door()
    door.enter()
    shutting = asyncio.create_task(door.shut())
    await asyncio.sleep(0)
    assert not shutting.done()
    with pytest.raises(ShuttingDown):
        door.enter()
    assert door.inside == 1
    door.leave()
    await shutting
    await door.shut()
