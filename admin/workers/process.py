"""One gateway process: its start, its end, and the pauses before restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from admin.workers.messages import decode_up
from admin.workers.shared_counters import CounterReader
from admin.workers.statistics import RECORDS_MAX
from admin.workers.stream import SocketStream, Stream

MODULE = "admin.workers"
DOOR_BYTE: Final = b"s"
"""What comes with the descriptor of a stream: a message of the door cannot be empty."""

FIRST_S: Final = 0.1
MOST_S: Final = 5.0
SOUND_S: Final = 30.0
"""A worker that ran this long did not fail because of its start."""


class WorkerProcess:
    """Gateway process as a child of this process. `counters` reads its counters, `revisions` its
    numbers by revision."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        door: socket.socket,
        counters: CounterReader,
        revisions: CounterReader,
    ) -> None:
        """`door` is this end of the pair over which the child gets its streams."""
        self._child = child
        self._pidfd = os.pidfd_open(child.pid)
        self._ended = asyncio.Event()
        self._door = door
        self._stream: Stream | None = None
        self.counters = counters
        self.revisions = revisions
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended.set)

    @classmethod
    async def start(cls) -> WorkerProcess:
        """Start a process. Raises OSError if none can be created."""
        counters, revisions = CounterReader(), CounterReader(RECORDS_MAX)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            child = await asyncio.to_thread(_launch, theirs, counters, revisions)
        except BaseException:
            ours.close()
            counters.close()
            revisions.close()
            raise
        finally:
            theirs.close()
            counters.close_descriptor()
            revisions.close_descriptor()
        return cls(child, ours, counters, revisions)

    def connect(self) -> Stream:
        """Implement `GatewayProcess.connect`."""
        if self._ended.is_set():
            raise BrokenPipeError("this process has ended")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._door, [DOOR_BYTE], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self._stream = SocketStream(ours, decode_up)
        return self._stream

    @property
    def name(self) -> str:
        """Name in messages: the pid."""
        return str(self._child.pid)

    def kill(self) -> None:
        """Kill the process at once."""
        self._child.kill()

    async def wait(self) -> str:
        """Wait for the end of the process; return how it ended, in words."""
        await self._ended.wait()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._door.close()
        # Its last messages are still in the socket; the loop reads them in its next turns.
        while self._stream is not None and self._stream.is_open:  # noqa: ASYNC110 - the end is queued
            await asyncio.sleep(0)
        code = self._child.wait()
        if code >= 0:
            return f"exited with code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"


def _launch(
    door: socket.socket, counters: CounterReader, revisions: CounterReader
) -> subprocess.Popen[bytes]:
    """Start the child process. SIGINT is blocked until the child ignores it, as Ctrl-C in a
    terminal reaches the whole process group. With -P, a folder named admin in the working directory
    is not imported."""
    passed = (door.fileno(), counters.descriptor, revisions.descriptor)
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
    """Pauses before the restarts of one worker."""

    next_s: float = FIRST_S

    def pause_s(self, lived_s: float) -> float:
        """Return the seconds until the next start after a run of `lived_s`: doubled each time up to
        MOST_S, and reset after a run of at least SOUND_S."""
        if lived_s >= SOUND_S:
            self.next_s = FIRST_S
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, MOST_S)
        return pause_s
