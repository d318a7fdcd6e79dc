"""Tests of advice computed in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from admin.advice.advice import Case, advise
from admin.advice.process import LOWEST, Advisor
from admin.documents.history import AdviceRow
from registry.errors import AdviceUnavailable, ShuttingDown
from tests.unit.admin.advice.test_advice import CASE

LONG = replace(
    CASE, to_s=7 * 86_400.0, minutes=[(60 * n, 2) for n in range(7 * 1440)], cold_s=5.0, max=4
)
"""A case that takes about a minute to compute."""


def children() -> set[int]:
    """Return the ids of this process's children."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, text.split()))


async def begun(advisor: Advisor, case: Case = LONG) -> asyncio.Task[object]:
    """Start the computation of a case; return once its process runs."""
    task = asyncio.ensure_future(advisor.rows(case))
    async with asyncio.timeout(60):
        while advisor._child is None:  # noqa: ASYNC110 - the start of a process has no event
            await asyncio.sleep(0)
    return task


async def test_rows_are_worked_out_elsewhere() -> None:
    """Rows are computed in another process, which has ended afterwards."""
    before = children()

    assert await Advisor().rows(CASE) == advise(CASE)
    assert children() == before


async def test_only_one_is_worked_out_at_a_time() -> None:
    """A second request is refused while the first is computed; the first is not disturbed, and
    afterwards there is room."""
    advisor = Advisor()
    first = await begun(advisor, CASE)

    with pytest.raises(AdviceUnavailable, match="only one runs at a time") as caught:
        await advisor.rows(CASE)

    assert caught.value.retry_after_s
    assert await first == advise(CASE)
    assert await advisor.rows(CASE)


async def test_a_cancelled_computation_ends() -> None:
    """The process ends when its client cancels."""
    before, advisor = children(), Advisor()
    task = await begun(advisor)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert children() == before
    assert await advisor.rows(CASE)


async def test_a_computation_has_a_time_limit() -> None:
    """A computation over its time limit is ended, and the text says what to do."""
    before = children()

    with pytest.raises(AdviceUnavailable, match=r"within 0\.2 s: ask for fewer hours"):
        await Advisor(limit_s=0.2).rows(LONG)

    assert children() == before


async def test_a_server_that_stops_waits_for_none() -> None:
    """A server that stops fails the running computation at once and starts no other."""
    before, advisor = children(), Advisor()
    task = await begun(advisor)

    await advisor.close()
    with pytest.raises(ShuttingDown):
        await task
    with pytest.raises(ShuttingDown):
        await advisor.rows(CASE)

    assert children() == before


async def test_a_process_that_fails_is_told_of() -> None:
    """The stderr of a failed process goes to the log, not into the answer."""
    broken = replace(CASE, to_s=float("nan"))

    with capture_logs() as log, pytest.raises(AdviceUnavailable, match="exit code 1"):
        await Advisor().rows(broken)

    assert "Error" in log[0]["said"]


MODULE = "admin.advice.process"


def test_a_case_in_and_its_rows_out() -> None:
    """The process returns the rows that a computation in this process gives."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE], input=msgspec.json.encode(CASE), capture_output=True
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert msgspec.json.decode(done.stdout, type=list[AdviceRow]) == advise(CASE)


def test_the_process_has_the_lowest_priority() -> None:
    """Before it reads its input, the process has the lowest CPU priority."""
    text = f"import os, sys; from {MODULE} import main; main(); print(os.nice(0), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", text], input=msgspec.json.encode(CASE), capture_output=True
    )

    assert done.stderr == f"{LOWEST}\n".encode()


def test_the_process_ends_after_its_time_limit() -> None:
    """The process ends after its time limit even if the server that would end it was killed."""
    text = (
        "import signal; set_alarm = signal.alarm; signal.alarm = lambda _: set_alarm(1);"
        f"from {MODULE} import main; main()"
    )
    # Its standard input stays open, so it waits until its time limit.
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE) as child:
        code = child.wait(20)

    assert code == -signal.SIGALRM


def test_malformed_input_is_an_error() -> None:
    """The process fails on input that is not a case; only the server writes to it."""
    done = subprocess.run([sys.executable, "-m", MODULE], input=b"{}", capture_output=True)

    assert done.returncode == 1
    assert b"from_s" in done.stderr
