"""The files of a replica, as far as they are stored on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pool_manager.ports import Binding
from registry.model.bundles import BundleFile


def files_of(binding: Binding, path: Callable[[str], Path]) -> list[BundleFile]:
    """Return the required files, and those of each optional group whose files are all stored;
    `path` returns where a file is by its sha256. Blocks."""
    files = list(binding.required.files)
    for group in (binding.prepared, binding.compiled):
        if all(path(file.sha256).is_file() for file in group):
            files += group
    return files
