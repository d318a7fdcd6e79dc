"""Reads the files of a compiled model, and refuses every file that is not exactly as described.

Deserialising an engine runs whatever its author wrote into it. So the bytes are copied to memory of
this process, sealed (memfd_create(2)), and compared with size and sha256; only this copy is opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from runtime_image.contract.compiled import FILES_MAX, FOLDER, CompiledFile, CompiledModel
from runtime_image.contract.errors import LoadError

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
CHUNK: Final = 4 * 1024 * 1024
"""Max bytes copied by one system call."""
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Refused(LoadError):
    """A file is not the one that was compiled."""


class VerifiedFiles:
    """Verified files by name, each in anonymous memory of this process."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def add(self, name: str, descriptor: int) -> None:
        """Add a file; `descriptor` is closed by `close`."""
        self._descriptors[name] = descriptor

    @property
    def first(self) -> str:
        """Path of the file to load, valid until `close`."""
        return self.path(next(iter(self._descriptors)))

    def path(self, name: str) -> str:
        """Return a path to a file's content, valid until `close`."""
        return f"/proc/self/fd/{self._descriptors[name]}"

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self._descriptors)

    def close(self) -> None:
        """Free the memory."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


@contextmanager
def verified(folder: Path, compiled: CompiledModel) -> Iterator[VerifiedFiles]:
    """Yield the contents of all files of `compiled` below `folder`/FOLDER.

    Raises Refused if any of them differs from its description, or is no regular file.
    """
    files = compiled.files
    if not 0 < len(files) <= FILES_MAX or len({file.name for file in files}) < len(files):
        raise Refused(f"expected 1 to {FILES_MAX} different files, got {len(files)}")
    contents = VerifiedFiles()
    try:
        for file in files:
            contents.add(file.name, _copied(folder, file))
        yield contents
    finally:
        contents.close()


def read_small(folder: Path, file: CompiledFile, bytes_max: int) -> bytes:
    """Return the content of a file below `folder`/FOLDER, b"" if it is too large or differs from
    its description."""
    with suppress(OSError, Refused), _opened(folder, file.name) as descriptor:
        if file.size <= bytes_max:
            with open(descriptor, "rb", closefd=False) as source:
                content = source.read(file.size + 1)
            digest = hashlib.sha256(content).hexdigest()
            if (len(content), digest) == (file.size, file.sha256):
                return content
    return b""


def _copied(folder: Path, file: CompiledFile) -> int:
    """Return a descriptor of a verified copy in memory."""
    try:
        with _opened(folder, file.name) as source:
            return _copy(source, file)
    except OSError as error:
        raise Refused(f"{file.name[:80]}: {error.strerror or error}") from error


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[int]:
    """Open a regular file without following links or opening devices. Raises OSError, Refused."""
    if not NAME.fullmatch(name):
        raise Refused(f"{name[:80]!r} is not the name of a compiled file")
    inside = os.open(folder / FOLDER, os.O_DIRECTORY | _FLAGS)
    try:
        # Before opening: to open a device may have an effect.
        _check_regular(name, os.stat(name, dir_fd=inside, follow_symlinks=False))
        descriptor = os.open(name, _FLAGS, dir_fd=inside)
    finally:
        os.close(inside)
    try:
        _check_regular(name, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _check_regular(name: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{name} is not a regular file")


def _copy(source: int, file: CompiledFile) -> int:
    size = os.fstat(source).st_size
    if size != file.size:
        raise Refused(f"{file.name}: expected {file.size} bytes, got {size}")
    copy = os.memfd_create("compiled", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        copied = 0
        while sent := os.sendfile(copy, source, copied, min(CHUNK, size + 1 - copied)):
            copied += sent
        # One byte more than expected shows that the file has grown.
        if copied > size:
            raise Refused(f"{file.name}: it grew while it was read")
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(copy, 0, os.SEEK_SET)
        with open(copy, "rb", buffering=0, closefd=False) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if copied < size or digest != file.sha256:
            raise Refused(f"{file.name}: its content is not the one that was compiled")
        os.lseek(copy, 0, os.SEEK_SET)
    except BaseException:
        os.close(copy)
        raise
    return copy
