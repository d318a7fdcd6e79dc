"""Turns of the scans of large bodies."""

from __future__ import annotations

import asyncio

from gateway.v1.turns import ScanTurns


class Scan:
    """A scan of some steps that writes its name at each."""

    def __init__(self, name: str, steps: int, into: list[str]) -> None:
        self._name = name
        self._steps = steps
        self._into = into

    def __call__(self) -> bool:
        """Do one step."""
        self._into.append(self._name)
        self._steps -= 1
        return self._steps > 0


async def test_scans_take_turns() -> None:
    """One step per iteration of the loop for all scans together, in the order of their arrival."""
    done: list[str] = []
    turns = ScanTurns()
    turns.add(Scan("a", 3, done))
    turns.add(Scan("b", 1, done))
    counts = []
    while len(turns):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert done == ["a", "b", "a", "a"]
    assert counts == [1, 2, 3, 4]


async def test_a_scan_that_comes_later_waits_behind_the_others() -> None:
    """An idle queue begins anew, and a new scan does not take the turn of an older one."""
    done: list[str] = []
    turns = ScanTurns()
    turns.add(Scan("a", 1, done))
    await asyncio.sleep(0)
    assert not len(turns)
    turns.add(Scan("b", 2, done))
    await asyncio.sleep(0)
    turns.add(Scan("c", 1, done))
    for _ in range(2):
        await asyncio.sleep(0)
    assert done == ["a", "b", "b", "c"]
    assert not len(turns)
