"""One process at a time, which ends with whoever asked."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from admin.advice.advice import Case, advise
from admin.advice.process import Advisor
from registry.errors import AdviceUnavailable, ShuttingDown
from tests.unit.admin.advice.test_advice_rows import CASE

LONG = replace(
    CASE, to_s=7 * 86_400.0, minutes=[(60 * n, 2) for n in range(7 * 1440)], cold_s=5.0, max=4
)
"""It takes a minute."""


def children() -> set[int]:
    """The processes of this one."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, text.split()))


async def begun(advisor: Advisor, case: Case = LONG) -> asyncio.Task[object]:
    """A case that is being played."""
    task = asyncio.ensure_future(advisor.rows(case))
    async with asyncio.timeout(60):
        while advisor._child is None:  # noqa: ASYNC110 - nobody tells when a process was made
            await asyncio.sleep(0)
    return task


async def test_rows_are_worked_out_elsewhere() -> None:
    """And nothing is left of that."""
    before = children()

    assert await Advisor().rows(CASE) == advise(CASE)
    assert children() == before


async def test_only_one_is_worked_out_at_a_time() -> None:
    """Who comes second is told to come again, the first is not disturbed; then there is room."""
    advisor = Advisor()
    first = await begun(advisor, CASE)

    with pytest.raises(AdviceUnavailable, match="only one is at a time") as caught:
        await advisor.rows(CASE)

    assert caught.value.retry_after_s
    assert await first == advise(CASE)
    assert await advisor.rows(CASE)


async def test_who_leaves_ends_it() -> None:
    """The process is gone with its client."""
    before, advisor = children(), Advisor()
    task = await begun(advisor)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert children() == before
    assert await advisor.rows(CASE)


async def test_it_may_not_take_for_ever() -> None:
    """After its time it is ended, and the text says what to do."""
    before = children()

    with pytest.raises(AdviceUnavailable, match=r"within 0\.2 s: ask for fewer hours"):
        await Advisor(limit_s=0.2).rows(LONG)

    assert children() == before


async def test_a_server_that_stops_waits_for_none() -> None:
    """Who waits is told at once, and nothing is begun any more."""
    before, advisor = children(), Advisor()
    task = await begun(advisor)

    await advisor.close()
    with pytest.raises(ShuttingDown):
        await task
    with pytest.raises(ShuttingDown):
        await advisor.rows(CASE)

    assert children() == before


async def test_a_process_that_fails_is_told_of() -> None:
    """Its last words are in the log, not in the answer."""
    broken = replace(CASE, to_s=float("nan"))

    with capture_logs() as log, pytest.raises(AdviceUnavailable, match="exit code 1"):
        await Advisor().rows(broken)

    assert "Error" in log[0]["said"]
