"""Options of a benchmark run, and properties of this machine and version."""

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
    """Options. `quick`: one round, short loads, small models; only checks that a benchmark runs."""

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
        """Cores for the measured server, and for everything else. They differ if there are two or
        more and pinning is on."""
        usable = sorted(os.sched_getaffinity(0))
        if not self.pinned or len(usable) < 2:
            return set(usable), set(usable)
        return {usable[0]}, set(usable[1:])


def has_setting(name: str) -> bool:
    """Whether this version of the server has `FN_<NAME>`; it ignores unknown variables."""
    return name in Settings.model_fields


def about() -> dict[str, Any]:
    """Return properties of the machine and library versions."""
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }
