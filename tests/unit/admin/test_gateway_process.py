"""Tests of the parts that every gateway process has."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from admin.gateway_process import start_root_tasks
from registry.tasks import Tasks

PAGES = """
import resource, sys
from admin.gateway_process import keep_large_buffers

mib = b"x" * 2**20

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        [mib * 10 for _ in range(6)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = sys.argv[1] == "kept" and keep_large_buffers()
faults()
print(kept, faults())
"""


async def test_root_tasks_are_named_and_called_periodically() -> None:
    """Root tasks run under their names until their owner closes, without a reason for /readyz."""
    tasks, ticks = Tasks("server"), asyncio.Event()
    start_root_tasks(tasks, [("errors", 0.0, ticks.set), ("history", 3600.0, list)])
    await ticks.wait()

    assert tasks.running() == ["errors", "history"]
    with capture_logs() as logs:
        await tasks.close()
    assert (tasks.reasons(), logs) == ([], [])


async def test_a_root_task_that_dies_is_seen() -> None:
    """The end of a root task is a reason for /readyz; an error in one of its calls does not end
    it."""
    tasks, calls = Tasks("server"), iter([OSError("disk full"), GeneratorExit("ended")])

    def fail() -> None:
        raise next(calls)

    with capture_logs() as logs:
        start_root_tasks(tasks, [("history", 0.0, fail), ("errors", 3600.0, list)])
        while "history" in tasks.running():
            await asyncio.to_thread(int)
    await tasks.close()

    assert tasks.reasons() == ["task server:history ended: GeneratorExit: ended"]
    assert [line["event"] for line in logs] == [
        "a periodic action failed",
        "a background task died",
    ]


@pytest.mark.slow
def test_buffers_of_large_bodies_stay_with_the_process() -> None:
    """Buffers of large bodies stay mapped, which cuts page faults at least tenfold."""
    faults = {}
    for how in ("kept", "given back"):
        command = [sys.executable, "-c", PAGES, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        was_kept, count = done.stdout.split()
        assert was_kept == str(how == "kept")
        faults[how] = int(count)

    assert faults["kept"] * 10 < faults["given back"]
