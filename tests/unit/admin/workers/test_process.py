"""Tests of the start and the end of a gateway process."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.workers.messages import Reach, Reached, decode_up, encode
from admin.workers.process import WorkerProcess
from tests.support.operator import until

pytestmark = pytest.mark.slow


def arguments(process: WorkerProcess) -> list[bytes]:
    """Return the arguments of the command line, with an empty one at the end."""
    return Path(f"/proc/{process.name}/cmdline").read_bytes().split(b"\0")


async def test_a_process_answers_and_ends_with_its_channel() -> None:
    """A process sends messages, has no secret in its command line, and ends with its channel."""
    said: list[bytes] = []
    lost: list[str] = []
    process = await WorkerProcess.start(said.append, lost.append)
    process.channel.send(encode(Reach(3)))
    await until(lambda: bool(said))
    assert decode_up(said[0]) == Reached(3)
    assert all(part.isdigit() for part in arguments(process)[-4:-1])
    process.channel.close()

    assert await process.wait() == "exited with code 0"
    process.counters.close()
    process.revisions.close()
    assert len(lost) == 1


async def test_a_killed_process_says_by_what() -> None:
    """The end of a killed process names the signal, and its channel ends."""
    lost: list[str] = []
    process = await WorkerProcess.start(lambda _: None, lost.append)
    process.kill()

    assert await process.wait() == "was killed by SIGKILL"
    assert len(lost) == 1
    process.kill()
    process.counters.close()
    process.revisions.close()
