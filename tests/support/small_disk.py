"""A small disk of a test's own, which can be filled to the last byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.engine import refuse
from tests.support.fake_driver.opening import PROGRAM
from tests.support.process_server import ServerProcess, server_process

MIB = 1 << 20
DISK_MIB = 48
BALLAST = {"FN_BALLAST_MIB": "4"}


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Mount a disk in memory of so many MiB on `folder`. Needs root; otherwise the test is skipped,
    or fails in CI."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        refuse(f"a disk of a test's own needs root and mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def server_on_a_small_disk(folder: Path) -> Iterator[ServerProcess]:
    """Run a server with fake replicas and a ballast of 4 MiB, whose data folder is on a disk of
    DISK_MIB."""
    with (
        small_disk(folder / "disk", DISK_MIB) as disk,
        server_process(disk / "data", environment=BALLAST, program=PROGRAM) as server,
    ):
        yield server


def fill(disk: Path) -> Path:
    """Take up all that is free on a disk; return the file that does."""
    path = disk / f"filler{os.urandom(4).hex()}"
    with path.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path
