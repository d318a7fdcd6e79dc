"""The stand-in for an engine that sleeps, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "engine.py"


@dataclass(frozen=True)
class SleepyEngine:
    """A running engine with one GPU."""

    process: subprocess.Popen[bytes]
    socket_path: Path
    """Its Unix socket."""
    held: Path
    """Folder of what it holds of its GPU."""

    @property
    def held_mib(self) -> int:
        """The MiB that it holds of its GPU."""
        (mib,) = held_mib(self.held).values()
        return mib


def held_mib(folder: Path) -> dict[str, int]:
    """Return the MiB in the files of a folder of `--held`, by the UUIDs of GPUs."""
    return {file.name.partition("@")[0]: int(file.read_text()) for file in folder.glob("*@*")}


def command(address: str, *options: str) -> list[str]:
    """Return the engine's command."""
    return [sys.executable, "-B", "-E", "-S", str(SOURCE), address, *options]


@contextmanager
def running(folder: Path, *options: str, fault: str = "") -> Iterator[SleepyEngine]:
    """Run the engine with its socket in `folder`, of a short path."""
    path, held = folder / "engine.sock", folder / "held"
    held.mkdir()
    words = command(str(path), "--held", str(held), "--fault", fault, *options)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield SleepyEngine(process, path, held)
    finally:
        process.kill()
        process.communicate()
