"""How a run of the benchmarks was asked for, and what this machine and this version have."""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from admin.settings import Settings

ROUNDS = 5
MODELS = Path(tempfile.gettempdir()) / f"fngate-benchmark-models-{os.getuid()}"
LIBRARIES = ("onnxruntime", "aiohttp", "uvloop", "numpy")


class LeftOut(Exception):
    """A benchmark cannot run here; the message says why."""


@dataclass(frozen=True)
class Setting:
    """`quick`: one round, short loads, small models; it shows that a benchmark runs, no more."""

    rounds: int = ROUNDS
    quick: bool = False
    pinned: bool = True
    models: Path = MODELS

    @property
    def load_s(self) -> int:
        """Seconds of one load; wrk takes whole ones."""
        return 1 if self.quick else 2

    @cached_property
    def cores(self) -> tuple[set[int], set[int]]:
        """For what is measured, and for all else: two apart, where there are two and pinning is
        wanted."""
        usable = sorted(os.sched_getaffinity(0))
        if not self.pinned or len(usable) < 2:
            return set(usable), set(usable)
        return {usable[0]}, set(usable[1:])


def has_setting(name: str) -> bool:
    """Whether this version of the server knows `FN_<NAME>`; it ignores variables it does not."""
    return name in Settings.model_fields


def about() -> dict[str, Any]:
    """The machine and the versions."""
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }
