"""Processes stopped with SIGSTOP, to simulate a hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime_image.proc import read_stat

STOPS_S = 30.0


def freeze(pid: int) -> None:
    """Stop a process; return once all its threads are stopped.

    A signal takes effect when a thread of the process is next scheduled. Until then the other
    threads run on, on a busy machine long enough to answer a request.
    """
    os.kill(pid, signal.SIGSTOP)
    end, pause = time.monotonic() + STOPS_S, threading.Event()
    while not _stands_still(pid):
        assert time.monotonic() < end, f"process {pid} does not stop"
        pause.wait(0.001)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Keep a process stopped until the end of the block."""
    freeze(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    stats = [read_stat(str(thread)) for thread in Path(f"/proc/{pid}/task").glob("*")]
    return all(stat is None or stat.state in (b"T", b"t", b"Z", b"X") for stat in stats)
