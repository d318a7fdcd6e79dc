"""Hostile and stale files of a compiled model, one way at a time."""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime_image.contract.compiled import FOLDER, CompiledModel


class Attack:
    """A compiled model whose files or description are changed in one hostile way at a time."""

    def __init__(self, folder: Path, compiled: CompiledModel) -> None:
        self._random = random.Random(20)
        self._folder = folder / FOLDER
        self._good = {path.name: path.read_bytes() for path in self._folder.iterdir()}
        self._compiled = compiled
        self.ways: list[Callable[[], CompiledModel]] = [
            self._random_bytes,
            self._flipped_bit,
            self._truncated,
            self._extended,
            self._swapped,
            self._other_key,
            self._other_ranges,
            self._link,
            self._fifo,
            self._socket,
            self._folder_instead,
            self._gone,
            self._device,
            self._linked_folder,
            self._other_size,
            self._other_digest,
        ]

    def prepare(self, index: int) -> CompiledModel:
        """Apply one way to the untouched files; return the description."""
        return self.ways[index % len(self.ways)]()

    def restore(self) -> None:
        """Put the untouched files back."""
        if self._folder.is_symlink():
            self._folder.unlink()
        self._folder.mkdir(exist_ok=True)
        for name, data in self._good.items():
            path = self._folder / name
            if path.is_dir():
                path.rmdir()
            elif path.is_symlink() or not path.is_file():
                path.unlink(missing_ok=True)
            path.write_bytes(data)

    def _path(self) -> Path:
        return self._folder / self._random.choice(sorted(self._good))

    def _random_bytes(self) -> CompiledModel:
        path = self._path()
        path.write_bytes(self._random.randbytes(len(self._good[path.name])))
        return self._compiled

    def _flipped_bit(self) -> CompiledModel:
        path = self._path()
        data = bytearray(self._good[path.name])
        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        path.write_bytes(data)
        return self._compiled

    def _truncated(self) -> CompiledModel:
        path = self._path()
        os.truncate(path, self._random.randrange(len(self._good[path.name])))
        return self._compiled

    def _extended(self) -> CompiledModel:
        with self._path().open("ab") as file:
            file.write(self._random.randbytes(self._random.randint(1, 4096)))
        return self._compiled

    def _swapped(self) -> CompiledModel:
        one, other = (self._folder / name for name in sorted(self._good))
        one.write_bytes(self._good[other.name])
        other.write_bytes(self._good[one.name])
        return self._compiled

    def _other_key(self) -> CompiledModel:
        key = list(self._compiled.key)
        key[self._random.randrange(len(key))] = "~"
        return replace(self._compiled, key="".join(key))

    def _other_ranges(self) -> CompiledModel:
        [one] = self._compiled.ranges
        wider = replace(one, largest=(self._random.randint(9, 10**6), *one.largest[1:]))
        return replace(self._compiled, ranges=(wider,))

    def _link(self) -> CompiledModel:
        path = self._path()
        copy = self._folder / "copy"
        copy.write_bytes(self._good[path.name])
        path.unlink()
        path.symlink_to(copy)
        return self._compiled

    def _fifo(self) -> CompiledModel:
        path = self._path()
        path.unlink()
        os.mkfifo(path)
        return self._compiled

    def _socket(self) -> CompiledModel:
        path = self._path()
        path.unlink()
        # The path may be longer than a socket's name.
        with socket.socket(socket.AF_UNIX) as sock, chdir(self._folder):
            sock.bind(path.name)
        return self._compiled

    def _folder_instead(self) -> CompiledModel:
        path = self._path()
        path.unlink()
        path.mkdir()
        return self._compiled

    def _gone(self) -> CompiledModel:
        self._path().unlink()
        return self._compiled

    def _device(self) -> CompiledModel:
        path = self._path()
        path.unlink()
        with suppress(PermissionError):  # then it is missing, which is refused, too
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero
        return self._compiled

    def _linked_folder(self) -> CompiledModel:
        elsewhere = self._folder.parent / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        self._folder.rename(elsewhere)
        self._folder.symlink_to(elsewhere)
        return self._compiled

    def _other_size(self) -> CompiledModel:
        return self._changed(size=self._random.randrange(2**40))

    def _other_digest(self) -> CompiledModel:
        return self._changed(sha256=self._random.randbytes(32).hex())

    def _changed(self, **fields: Any) -> CompiledModel:
        files = list(self._compiled.files)
        place = self._random.randrange(len(files))
        files[place] = replace(files[place], **fields)
        return replace(self._compiled, files=tuple(files))
