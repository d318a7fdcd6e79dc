"""Virtual environments of references that pin versions of packages that fngate uses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

INSTALL_S = 900


def environment(name: str) -> Path:
    """Return the folder of an environment, which may not exist."""
    return Path(tempfile.gettempdir()) / f"fngate-benchmark-{name}-{os.getuid()}"


def program(folder: Path, name: str, packages: Sequence[str], python: str = sys.executable) -> Path:
    """Return the path of a program in an environment, which is made and filled if it is missing.

    Raises RuntimeError if the packages cannot be installed.
    """
    path = folder / "bin" / name
    if path.exists():
        return path
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", *packages]
    for words in ([python, "-m", "venv", str(folder)], pip):
        try:
            subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            raise RuntimeError(f"it cannot be installed: {' '.join(said)[:200]}") from None
    return path
