"""Virtual environments for the servers of server functions, made from the configured index."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.engine import refuse

LIMIT_S: Final = 100.0
"""Max seconds of an installation in CI."""


def environment_of(requirements: Path, folder: Path, limit_s: float = LIMIT_S) -> Path:
    """Create a virtual environment in `folder` with the packages of `requirements`, by `uv` where
    it is there; return its folder of programs. Without an index the test is skipped; in CI it
    fails."""
    python = folder / "bin" / "python"
    if uv := shutil.which("uv"):
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        # Unpacking a pip into the environment would take as long as the packages.
        make = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        install += ["--no-input", "--retries", "1", "--disable-pip-version-check"]
    try:
        for command in (make, [*install, "-r", str(requirements)]):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit_s)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        refuse(f"the packages of {requirements} could not be installed: {last}")
    except subprocess.TimeoutExpired:
        refuse(f"the packages of {requirements} were not installed within {limit_s:g} s")
    return python.parent
