"""One gateway process: its start, its end, and the pauses before it is started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from admin.workers.channel import Channel
from admin.workers.shared_counters import CounterReader

MODULE = "admin.workers.worker"

FIRST_S: Final = 0.1
MOST_S: Final = 5.0
SOUND_S: Final = 30.0
"""A worker that ran for so long did not end because of its start."""


class WorkerProcess:
    """A child of this process. `counters` has what it counts."""

    def __init__(
        self, child: subprocess.Popen[bytes], channel: Channel, counters: CounterReader
    ) -> None:
        self._child = child
        self._pidfd = os.pidfd_open(child.pid)
        self._ended = asyncio.Event()
        self.channel = channel
        self.counters = counters
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended.set)

    @classmethod
    async def start(
        cls, on_message: Callable[[bytes], None], on_lost: Callable[[str], None]
    ) -> WorkerProcess:
        """Start one. `on_message` gets its messages, `on_lost` the reason of the channel's end.

        Raises OSError where no process can be made.
        """
        counters = CounterReader()
        ours, theirs = socket.socketpair()
        try:
            child = await asyncio.to_thread(_launch, theirs, counters)
        except BaseException:
            ours.close()
            counters.close()
            raise
        finally:
            theirs.close()
            counters.close_descriptor()
        channel = Channel(on_message, on_lost)
        await channel.open(ours)
        return cls(child, channel, counters)

    @property
    def name(self) -> str:
        """What it is called in messages: its pid."""
        return str(self._child.pid)

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()

    async def wait(self) -> str:
        """Wait for its end; how it ended, in words."""
        await self._ended.wait()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # What it has said before it died is still in the socket, and read in the loop's next turns.
        while self.channel.is_open:  # noqa: ASYNC110 - the end of the stream is there already
            await asyncio.sleep(0)
        code = self._child.wait()
        if code >= 0:
            return f"exited with code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"


def _launch(control: socket.socket, counters: CounterReader) -> subprocess.Popen[bytes]:
    """Ctrl-C in a terminal reaches the whole process group: SIGINT is blocked until the child
    ignores it. -P: a folder called admin in the working directory is not ours."""
    passed = (control.fileno(), counters.descriptor)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, *map(str, passed)],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class Restarts:
    """The pauses before the restarts of one worker."""

    next_s: float = FIRST_S

    def pause_s(self, lived_s: float) -> float:
        """Seconds until the next start, after a life of so many: twice as long each time, up to
        MOST_S, and short again after a sound life."""
        if lived_s >= SOUND_S:
            self.next_s = FIRST_S
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, MOST_S)
        return pause_s
