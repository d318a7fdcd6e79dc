"""The first lines of a program of a build: `python -I -S launch.py PARENT BYTES PROGRAM ...`.

It makes the kernel end the program with the thread that started it, lets no file grow over BYTES,
and becomes the program. With NO_LIMIT for BYTES it only does the first and the last of these. It
runs as a file and imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
OOM_SCORE: Final = 600
"""The kernel ends a build before servers and their supervisor."""
NICE: Final = 10
"""Builds give way to what serves."""
NO_LIMIT: Final = "-"
"""Instead of BYTES: the program is no build."""


def become(parent: int, file_max: int | None, command: list[str]) -> None:
    """Turn this process into a program, which is none of a build without `file_max`. Raises
    OSError."""
    zero = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above
    if file_max is not None:
        _limit(file_max)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(command[0], command)  # noqa: S606 - no shell is intended


def _limit(file_max: int) -> None:
    os.umask(0o022)
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = file_max if hard == resource.RLIM_INFINITY else min(file_max, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    # SIGXFSZ stays ignored: a file that grows too much is an error of write(2).


if __name__ == "__main__":
    limit = None if sys.argv[2] == NO_LIMIT else int(sys.argv[2])
    become(int(sys.argv[1]), limit, sys.argv[3:])
