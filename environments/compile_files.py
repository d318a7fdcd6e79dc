"""Compile files to bytecode: `PYTHON -I -S compile_files.py FOLDER FINAL LIST`.

LIST has a path below FOLDER in each line; FINAL is the folder's later name. The interpreter of the
environment runs it as a file. No line of the files is executed.
"""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path


def compile_file(path: Path, final: Path) -> None:
    """Write the bytecode of a file beside it. It is not compared with the source at import: folders
    of packages are never changed. Raises OSError; a file that is no Python is left alone."""
    try:
        py_compile.compile(
            str(path),
            dfile=str(final),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except (py_compile.PyCompileError, ValueError, RecursionError, MemoryError):
        return


def main(folder: Path, final: Path, names: Path) -> None:
    """Compile all files of a list."""
    for name in names.read_text("utf-8", "surrogateescape").split("\n"):
        if name:
            compile_file(folder / name, final / name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
