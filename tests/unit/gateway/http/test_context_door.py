"""Tests of the door."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.context import RequestGate
from registry.errors import ShuttingDown


async def test_a_shut_door_lets_those_inside_finish() -> None:
    """`shut` returns when the last one has left; nobody comes in any more."""
    gate = RequestGate()
    gate.enter()
    shutting = asyncio.create_task(gate.close())
    await asyncio.sleep(0)
    assert not shutting.done()
    with pytest.raises(ShuttingDown):
        gate.enter()
    assert gate.active == 1
    gate.exit()
    await shutting
    await gate.close()
