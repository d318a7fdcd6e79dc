"""What starting costs: whole processes, page cache warm."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import interleaved, show, wall_ms

ROUNDS = 15


def main() -> None:
    """Print the table."""
    python = sys.executable
    fnctl = str(Path(python).parent / "fnctl")
    environment = {"PATH": "/usr/bin:/bin", "ORT_DISABLE_TELEMETRY": "1"}
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "fnctl --help": [fnctl, "--help"],
        "python -I: import onnxruntime": [python, "-I", "-c", "import onnxruntime"],
        "python -I: a replica's imports": [
            python,
            "-I",
            "-c",
            "import runtime_image.replica.main, onnxruntime",
        ],
        "the same and asyncio": [
            python,
            "-I",
            "-c",
            "import runtime_image.replica.main, onnxruntime, asyncio",
        ],
        "the same and aiohttp": [
            python,
            "-I",
            "-c",
            "import runtime_image.replica.main, onnxruntime, aiohttp.web",
        ],
    }
    cases = {name: partial(wall_ms, command, environment) for name, command in commands.items()}
    show(interleaved(cases, ROUNDS), "python -c pass", "ms")
