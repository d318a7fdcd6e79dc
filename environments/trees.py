"""Folders of many files: made read-only, durable, measured, removed."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def make_read_only(folder: Path) -> None:
    """Take the right to write from all files and folders, and give everybody that to read. Raises
    OSError."""
    for at, names, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(at, name)
            path.chmod(0o555 if path.lstat().st_mode & 0o111 else 0o444)
        for name in names:
            Path(at, name).chmod(0o555)
    folder.chmod(0o555)


def make_durable(folder: Path) -> None:
    """Write all that a disk has not yet written, the one of `folder`: syncfs(2). Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also a read-only one; one that is absent is no error. Raises OSError."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    folder.chmod(0o700)
    for at, names, _ in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; of files that go meanwhile, none."""
    return sum(sizes_of(folder))


def sizes_of(folder: Path) -> tuple[int, int]:
    """Return the bytes of all files below a folder that have one name, and of those with several:
    hard links. Of files that go meanwhile, none."""
    own = shared = 0
    for found in _stats(folder):
        if found.st_nlink > 1:
            shared += found.st_size
        else:
            own += found.st_size
    return own, shared


def _stats(folder: Path) -> Iterator[os.stat_result]:
    for at, _, files in os.walk(folder):
        for name in files:
            try:
                yield Path(at, name).lstat()
            except FileNotFoundError:
                continue
