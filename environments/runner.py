"""Compiled copies of the server of Python functions, each for one interpreter.

A function's Python finds no other package of ours beside a copy, and cannot write into it.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from pathlib import Path
from typing import Final

from environments.interpreters import Interpreter
from environments.programs import Limits, Program, Work, run

PROGRAM: Final = "python_runner"
"""Its program, in a copy."""
COMPILE_S: Final = 120.0
_PARTS: Final = (PROGRAM, "runtime_image/contract", "runtime_image/codecs")
_PACKAGE: Final = "runtime_image/__init__.py"
_ROOT: Final = Path(__file__).parents[1]


@functools.cache
def runner_digest() -> str:
    """Return a digest of what copies consist of, which stays the same while this process runs."""
    sources = [_ROOT / _PACKAGE]
    for part in _PARTS:
        sources += sorted((_ROOT / part).rglob("*.py"))
    total = hashlib.sha256()
    for path in sources:
        data = path.read_bytes()
        total.update(f"{path.relative_to(_ROOT)} {len(data)}\n".encode() + data)
    return total.hexdigest()[:16]


def copy_runner(folder: Path, interpreter: Interpreter, final: Path | None = None) -> None:
    """Copy the server into a folder that has none yet, and compile it. `final`: the folder's later
    name. Raises OSError."""
    ignored = shutil.ignore_patterns("__pycache__", "*.md")
    for part in _PARTS:
        shutil.copytree(_ROOT / part, folder / part, ignore=ignored)
    shutil.copy2(_ROOT / _PACKAGE, folder / _PACKAGE)
    # Unchecked: times change with a copy, contents do not.
    command: list[str | Path] = [interpreter.path, "-I", "-S", "-m", "compileall", "-q"]
    command += [
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        folder,
        "-p",
        final or folder,
        folder,
    ]
    run(Program(command, folder), Limits(COMPILE_S), Work())
