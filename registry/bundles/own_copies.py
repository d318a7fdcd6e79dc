"""Files of a bundle that a model folder has as copies of its own, not as further names of a blob.

ONNX Runtime refuses external data of branches and loop bodies in a file with several hard links,
but not that of the main graph. Trials and replicas have the same layout, so a trial finds what
would fail later.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from registry.bundles.onnx_apart import read_apart
from registry.bundles.onnx_files import OnnxReader, external_paths
from registry.errors import BadBundle
from registry.model.bundles import BundleFile

SUFFIX: Final = ".onnx"
GRAPHS_MAX: Final = 256
"""Max graphs whose locations are remembered, so that a start reads no graph again."""

COPIED_MAX: Final = 2**30
"""Bytes of one system call."""


class OwnCopies:
    """Finds these files. `path` returns where a blob is."""

    def __init__(self, path: Callable[[str], Path]) -> None:
        self._path = path
        self._nested = functools.lru_cache(GRAPHS_MAX)(self._read)

    def of(self, files: Collection[BundleFile]) -> frozenset[str]:
        """Return the paths of the files to copy. Reads the graphs among `files`. Blocking."""
        if len(files) < 2:  # a graph alone has no data elsewhere
            return frozenset()
        found: set[str] = set()
        for file in files:
            if file.path.lower().endswith(SUFFIX):
                try:
                    found.update(external_paths(file.path, self._nested(file.sha256)))
                except (BadBundle, OSError, ValueError):
                    continue  # no model that loads; laying it out, or loading it, gives the reason
        return frozenset(found & {file.path for file in files})

    def _read(self, sha256: str) -> tuple[str, ...]:
        return OnnxReader(apart=read_apart).read(self._path(sha256)).nested


def copy(source: Path, target: Path) -> None:
    """Copy a file to a new path, readable by all. File systems that can share its blocks do."""
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        while os.copy_file_range(old.fileno(), new.fileno(), COPIED_MAX):
            pass
        os.fchmod(new.fileno(), 0o444)
