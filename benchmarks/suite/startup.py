"""Start-up time of whole processes, with a warm page cache."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.measuring.record import Figures, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.references.engines import ENVIRONMENT

NOTHING = "python -c pass"
IMPORTS = "import runtime_image.replica.main, onnxruntime"


def measure(setting: Setting) -> list[Part]:
    """Measure each command from its start to its end."""
    python = sys.executable
    fnctl = str(Path(python).parent / "fnctl")
    commands = {
        NOTHING: [python, "-c", "pass"],
        "fnctl --help": [fnctl, "--help"],
        "fnctl serve --help": [fnctl, "serve", "--help"],
        "python -I: import onnxruntime": [python, "-I", "-c", "import onnxruntime"],
        "python -I: a replica's imports": [python, "-I", "-c", IMPORTS],
        "the same and asyncio": [python, "-I", "-c", f"{IMPORTS}, asyncio"],
        "the same and aiohttp": [python, "-I", "-c", f"{IMPORTS}, aiohttp.web"],
    }
    cases = {name: partial(wall_ms, command) for name, command in commands.items()}
    return [*compare(interleaved(cases, setting.rounds), NOTHING)]


def wall_ms(command: Sequence[str]) -> Figures:
    """Return the duration of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    return {"ms": (time.perf_counter() - began) * 1e3}
