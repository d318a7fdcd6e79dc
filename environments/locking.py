"""Locks between processes and threads: flock(2), which the kernel releases in every case."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from environments.programs import Progress, Work


@contextlib.contextmanager
def locked(path: Path, work: Work, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock of a file, and yield its descriptor; waits as long as `work` may take.

    A program that is given the descriptor holds the lock until it ends, too. Raises WorkCancelled,
    EnvironmentRefused, OSError.
    """
    descriptor = _open(path)
    try:
        while not _take(descriptor, shared=shared):
            work.told(Progress("wait"))
            work.pause()
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of a file if nobody else does, and yield whether it is held."""
    descriptor = _open(path)
    try:
        yield _take(descriptor, shared=False)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _take(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
