"""The stand-in for an engine that sleeps, as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "engine.py"


@dataclass(frozen=True)
class SleepyEngine:
    """A running engine."""

    process: subprocess.Popen[bytes]
    socket_path: Path
    """Its Unix socket."""
    held: Path
    """File with the MiB that it holds of its GPU."""

    @property
    def held_mib(self) -> int:
        """The MiB that it holds of its GPU."""
        return int(self.held.read_text())


def command(address: str, *options: str) -> list[str]:
    """Return the engine's command."""
    return [sys.executable, "-B", "-E", "-S", str(SOURCE), address, *options]


@contextmanager
def running(folder: Path, *options: str, fault: str = "") -> Iterator[SleepyEngine]:
    """Run the engine with its socket in `folder`, of a short path."""
    path, held = folder / "engine.sock", folder / "held"
    words = command(str(path), "--held", str(held), "--fault", fault, *options)
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield SleepyEngine(process, path, held)
    finally:
        process.kill()
        process.communicate()
