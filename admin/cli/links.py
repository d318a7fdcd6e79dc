"""Links in a folder that is deployed: followed, but not to where a stranger's folder may lead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from registry.errors import BadBundle

_KERNEL: Final = ("/proc/", "/sys/")
"""What the kernel makes up, such as the environment of `fnctl`, looks like regular files."""


def real_path(root: Path, path: str) -> Path:
    """Return where a path of the folder `root` really lies, links followed.

    Raises BadBundle if nothing is there or links go in circles, if it is a file of the kernel, or
    if a link leads into a hidden folder or to a hidden file, where keys and passwords are: seen
    from the nearest folder above both, so that `root` itself may lie in one.
    """
    try:
        base = Path(os.path.realpath(root, strict=True))
        real = Path(os.path.realpath(root / path, strict=True))
    except OSError as error:
        raise BadBundle(f"{path!r} cannot be read: {error.strerror}") from error
    if real == base / path:
        return real
    way = real.relative_to(os.path.commonpath([base, real])).parts
    if str(real).startswith(_KERNEL) or any(part.startswith(".") for part in way):
        raise BadBundle(
            f"{path!r}: expected a link to a file that is not hidden, got one to {real}; copy the"
            " file into the folder"
        )
    return real


def leads_out(root: Path, path: str) -> bool:
    """Return whether a path of the folder really lies outside. Raises BadBundle."""
    return not real_path(root, path).is_relative_to(os.path.realpath(root))
