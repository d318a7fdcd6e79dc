"""Memory groups of the kernel, by which a container is limited and killed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A memory cgroup of version 1 or 2. `folder` is None where this machine lets none be made."""

    def __init__(self, name: str) -> None:
        self._is_first = (ROOT / "memory").is_dir()
        parent = ROOT / "memory" if self._is_first else ROOT
        self.folder: Path | None = parent / f"fnk-{os.getpid()}-{name}"
        try:
            self.folder.mkdir()
        except OSError:
            self.folder = None
            return
        if not (self.folder / self._limit).exists():  # version 2 without the memory controller
            self.folder.rmdir()
            self.folder = None

    @property
    def _limit(self) -> str:
        return "memory.limit_in_bytes" if self._is_first else "memory.max"

    @staticmethod
    def sweep() -> None:
        """Remove the groups of processes that have ended before they could."""
        for parent in (ROOT / "memory", ROOT):
            for folder in parent.glob("fnk-*"):
                if not Path("/proc", folder.name.split("-")[1]).exists():
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    def limit(self, most_bytes: int) -> None:
        """Limit what is used from now on."""
        if self.folder is not None:
            (self.folder / self._limit).write_text(str(most_bytes))

    @property
    def limit_bytes(self) -> int:
        """The limit as the kernel has it, 0 for none."""
        if self.folder is None:
            return 0
        text = (self.folder / self._limit).read_text().strip()
        return 0 if text == "max" else int(text)

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process for want of memory."""
        if self.folder is None:
            return False
        name = "memory.oom_control" if self._is_first else "memory.events"
        for line in (self.folder / name).read_text().splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill":
                return int(count) > 0
        return False

    def close(self) -> None:
        """Remove it; its processes have ended."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
