"""The shell of an environment: small files that make a run folder a virtual environment.

The folder of packages belongs to no interpreter and is shared; the shell is of one run and one
interpreter. Child processes find the packages through it: by `sys.executable`, by PATH.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from environments.entry_points import BIN
from environments.folders import Environment
from environments.interpreters import Interpreter
from registry.errors import EnvironmentRefused

SHELL_LINE: Final = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" {file} "$@"
' '''
"""
"""sh runs the second line; to Python both are a string. So the folder may be anywhere."""


def write_shell(
    folder: Path, interpreter: Interpreter, environment: Environment, packages: Path | None = None
) -> Path:
    """Make a folder, which is created, a virtual environment; return its `bin/python`.

    `packages` is where the run will see the environment's packages, if not where they are here.
    Raises EnvironmentRefused if they are of another Python, and OSError.
    """
    lock = environment.lock
    if not lock.fits(interpreter):
        expected = f"Python {lock.python} on {lock.platform} with {lock.libc}"
        raise EnvironmentRefused(f"expected {expected}, got {interpreter.full_version}")
    there = packages or environment.packages
    programs = folder / BIN
    library = folder / "lib" / f"python{lock.python}"
    programs.mkdir(parents=True)
    library.mkdir(parents=True)
    (library / "site-packages").symlink_to(there)
    (folder / "pyvenv.cfg").write_text(
        f"home = {interpreter.path.parent}\n"
        "include-system-site-packages = false\n"
        f"version = {'.'.join(map(str, interpreter.version))}\n"
        f"executable = {interpreter.path}\n"
    )
    python = programs / "python"
    python.symlink_to(interpreter.path)
    for name in ("python3", f"python{lock.python}"):
        (programs / name).symlink_to("python")
    _write_scripts(programs, environment.scripts)
    _link_programs(programs, environment.programs, there / BIN)
    return python


def _write_scripts(programs: Path, scripts: Mapping[str, str]) -> None:
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        text = SHELL_LINE.format(file='"$0"')
        text += f"import sys\nfrom {module} import {function.partition('.')[0]}\n"
        _write(programs / name, f"{text}sys.exit({function}())\n")


def _link_programs(programs: Path, names: Mapping[str, bool], there: Path) -> None:
    for name, is_python in names.items():
        if is_python:
            quoted = "'" + str(there / name).replace("'", "'\\''") + "'"
            _write(programs / name, SHELL_LINE.format(file=quoted))
        else:
            (programs / name).symlink_to(there / name)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
