"""Wheels that a bundle brings in its folder `wheels/`: packages that no index has."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from registry.errors import BadNeeds

FOLDER: Final = "wheels"
"""Name of the folder in a bundle."""
WHEELS_MAX: Final = 100
_SHOWN_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel, by its name and its bytes."""

    name: str
    version: str
    sha256: str
    size: int


def read_wheels(folder: Path) -> tuple[Wheel, ...]:
    """Return the wheels of a folder, sorted; it may have nothing else.

    Raises BadNeeds for another file and for two versions of a package, and OSError.
    """
    names = sorted(os.listdir(folder))
    if len(names) > WHEELS_MAX:
        raise BadNeeds(f"{FOLDER}/: expected at most {WHEELS_MAX} wheels, got {len(names)}")
    found = sorted((_read(folder / name) for name in names), key=lambda one: one.name)
    versions: dict[str, str] = {}
    for one in found:
        other = versions.setdefault(one.name, one.version)
        if other != one.version:
            got = f"{other} and {one.version}"
            raise BadNeeds(f"{FOLDER}/: expected one version of {one.name}, got {got}")
    return tuple(found)


def _read(path: Path) -> Wheel:
    name = path.name
    try:
        distribution, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        got = ascii(name[:_SHOWN_MAX])
        expected = "a wheel like NAME-VERSION-py3-none-any.whl"
        raise BadNeeds(f"{FOLDER}/: expected {expected}, got {got}") from error
    if path.is_symlink() or not path.is_file() or not name.isascii():
        raise BadNeeds(f"{FOLDER}/{name[:_SHOWN_MAX]!a}: expected a file, got something else")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = os.fstat(file.fileno()).st_size
    return Wheel(distribution, str(version), sha256, size)
