"""Which parts of which files are read into memory before a replica asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from runtime_image.contract.model import ModelSpec


class Portion(NamedTuple):
    """The first `size` bytes of a file; its path is relative to the model folder."""

    path: str
    size: int


def plan(files: Iterable[Portion], spec: ModelSpec, bytes_max: int) -> list[Portion]:
    """What is worth reading, the largest file first, `bytes_max` in all. Of a model that was
    prepared only what its first session is made of: the rest is not touched at a start."""
    wanted = sorted(files, key=lambda file: (-file.size, file.path))
    if folder := _prepared(spec):
        wanted = [file for file in wanted if PurePosixPath(file.path).is_relative_to(folder)]
    portions = []
    for file in wanted:
        size = min(file.size, bytes_max)
        if size > 0:
            portions.append(Portion(file.path, size))
            bytes_max -= size
    return portions


def _prepared(spec: ModelSpec) -> str:
    """The folder that the first session's files are in, "" where they may be anywhere."""
    if spec.preparation is None:
        return ""
    parent = PurePosixPath(spec.preparation.quick.file).parent
    return "" if parent == PurePosixPath() else str(parent)
