"""Record of the images that were built on this machine, a file in a server's data folder.

Only who may write there adds to it: labels and names of images would come with any image.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pool_manager.image_names import Reference
from registry.errors import StoreUnavailable
from registry.files import unavailable

FILE: Final = "built-images"
READ_MAX: Final = 1024 * 1024
"""Max bytes of the file that count: the newest."""
_LINE: Final = re.compile(r"(sha256:[0-9a-f]{64}) (\S+)")


def record_built(data: Path, tag: str, id: str) -> None:
    """Add an image, durably. Creates the folder if needed. Raises StoreUnavailable."""
    path = data.expanduser() / FILE
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Readable for a server of another user than the one that builds, such as root.
        descriptor = os.open(path, flags, 0o644)
        try:
            # One write, so that builds at the same time do not mix their lines.
            os.write(descriptor, f"{id} {Reference.parse(tag).full()}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unavailable(error) from error


def read_built(data: Path) -> dict[str, str]:
    """Return the ids of the images by their full names; without a readable file, none."""
    try:
        with (data / FILE).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - READ_MAX))
            text = file.read(READ_MAX).decode("utf-8", "replace")
    except OSError:
        return {}
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return {one[2]: one[1] for one in found if one}


def note_of(data: Path, tag: str, id: str) -> str:
    """Record an image; return why that failed, "" if it did not: the image is there anyway."""
    try:
        record_built(data, tag, id)
    except StoreUnavailable as error:
        return (
            f"keys with the scope deploy cannot name {tag}, as it is not recorded in {data}:"
            f" {error.message}; name the server's data folder with --data or FN_DATA"
        )
    return ""
