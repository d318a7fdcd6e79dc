"""Tests of the start and the end of a gateway process."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from admin.workers import messages as m
from admin.workers.process import WorkerProcess
from admin.workers.stream import Stream
from tests.support.operator import until

pytestmark = pytest.mark.slow


def arguments(process: WorkerProcess) -> list[bytes]:
    """Return the arguments of the command line, with an empty one at the end."""
    return Path(f"/proc/{process.name}/cmdline").read_bytes().split(b"\0")


class End:
    """What the server's end of a stream received."""

    def __init__(self) -> None:
        self.said: list[m.Up] = []
        self.lost: list[str] = []

    async def open(self, process: WorkerProcess) -> Stream:
        """Give the process a stream; return the server's end."""
        stream = process.connect()
        await stream.open(self.said.append, self.lost.append)
        return stream


async def test_a_process_gets_streams_and_ends_with_its_door() -> None:
    """A process says Hello on each stream that it gets, has no secret in its command line, and
    ends with its door."""
    process, ends = await WorkerProcess.start(), [End(), End()]
    hello = m.Hello(m.VERSION, version("fngate"))
    for end in ends:
        stream = await end.open(process)
        await until(lambda end=end: bool(end.said))
        assert end.said == [hello]
        stream.close()
        await until(lambda end=end: bool(end.lost))
    assert all(part.isdigit() for part in arguments(process)[-4:-1])
    process._door.close()

    assert await process.wait() == "exited with code 0"
    process.counters.close()
    process.revisions.close()
    with pytest.raises(BrokenPipeError, match="has ended"):
        process.connect()


async def test_a_killed_process_says_by_what() -> None:
    """The end of a killed process names the signal, and its stream ends."""
    process, end = await WorkerProcess.start(), End()
    await end.open(process)
    process.kill()

    assert await process.wait() == "was killed by SIGKILL"
    assert len(end.lost) == 1
    process.kill()
    process.counters.close()
    process.revisions.close()
