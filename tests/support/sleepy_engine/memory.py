"""The memory of stand-in GPUs, as an engine has it. Standard library only."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

FULL_MIB, RESIDUE_MIB = 8192, 512
"""MiB that an engine holds of each GPU, awake and asleep."""
CONFLICTS = "conflicts"
"""File in the folder with a line for each engine that found too little memory."""


def visible() -> list[str]:
    """Return the UUIDs of the visible GPUs; those of the stand-in board end in their numbers."""
    numbers = re.findall(r"(\d+)(?:,|$)", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return [f"GPU-stand-in-{number}" for number in numbers]


class StandInMemory:
    """What this process holds of each GPU, in files of a folder ("" for none).

    Each file, UUID@NAME, is locked (flock(2)) while the process lives, and has a number of MiB.
    `gpu_mib` is the size of a GPU, 0 for any. `host_mib` is what a sleep really takes of the host.
    """

    def __init__(self, folder: str, gpu_mib: int = 0, host_mib: int = 0) -> None:
        self._folder = folder
        self._gpu_mib = gpu_mib
        self._host_mib = host_mib
        self._copy = b""
        if folder:
            _clear(Path(folder))
        self._files = {uuid: _locked(folder, uuid) for uuid in (visible() if folder else ())}
        self._is_right = True

    def fill(self, *, is_right: bool) -> None:
        """Hold all memory of each GPU. Raises MemoryError if one has too little."""
        for uuid in self._files:
            self._take(uuid)
        self._is_right, self._copy = is_right, b""

    def free(self, kept: float) -> None:
        """Give it back but for a share, at least the residue."""
        self._copy = b"\1" * (self._host_mib * 2**20)
        for file in self._files.values():
            _write(file, max(RESIDUE_MIB, round(FULL_MIB * kept)))

    def is_right(self) -> bool:
        """Whether what filled it last was right."""
        return self._is_right

    def _take(self, uuid: str) -> None:
        """Hold all memory of a GPU; one engine at a time."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            others = self._others(uuid) if self._gpu_mib else {}
            if self._gpu_mib and sum(others.values()) + FULL_MIB > self._gpu_mib:
                told = f"{uuid}: {FULL_MIB} MiB beside {others}, of {self._gpu_mib} MiB"
                with Path(self._folder, CONFLICTS).open("a") as conflicts:
                    conflicts.write(f"{told}\n")
                raise MemoryError(told)
            _write(self._files[uuid], FULL_MIB)
        finally:
            os.close(folder)

    def _others(self, uuid: str) -> dict[str, int]:
        """Return the MiB of the other living engines on a GPU, by the name of their file."""
        own = os.fstat(self._files[uuid]).st_ino
        found = {}
        for path in Path(self._folder).glob(f"{uuid}@*"):
            with suppress(FileNotFoundError):  # it had ended, and another engine has removed it
                if path.stat().st_ino != own and _is_held(path):
                    found[path.name] = int(path.read_text())
        return found


def _is_held(path: Path) -> bool:
    """Whether the engine with a file lives. From its namespace an engine sees no locks of others in
    /proc/locks. A shared lock looks like no engine's."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(file)


def _clear(folder: Path) -> None:
    """Remove the files of engines that have ended: the stand-in for NVML reads all of them at each
    call."""
    for path in folder.glob("*@*"):
        with suppress(FileNotFoundError):  # another engine has just removed it
            if not _is_held(path):
                path.unlink()


def _locked(folder: str, uuid: str) -> int:
    """Create a file that is locked before it has its name."""
    file, path = tempfile.mkstemp(dir=folder)
    fcntl.flock(file, fcntl.LOCK_EX)
    _write(file, 0)
    Path(path).rename(Path(folder, f"{uuid}@{Path(path).name}"))
    return file


def _write(file: int, mib: int) -> None:
    # One write of the same length: a reader never finds a part of a number.
    os.pwrite(file, f"{mib:8}".encode(), 0)
