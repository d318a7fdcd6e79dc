"""The sources that an image is built from: where they lie, which release they are, their digest."""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import runtime_image
from admin.image.failures import image_error

PACKAGE: Final = "runtime_image"
DOCKERFILE: Final = "Dockerfile.runtime"
CONSTRAINTS: Final = "constraints.txt"
FILES_MAX: Final = 1000
BYTES_MAX: Final = 16 * 2**20
"""Limits of the sources: what is larger is not a checkout of fngate."""

_LINK: Final = re.compile(r"^VERSION: Final = (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Release:
    """What an image says of its sources, in its labels."""

    link: int
    version: str
    source: str
    """`digest` of them."""


def own_checkout() -> Path:
    """The folder that this very package lies in."""
    return Path(runtime_image.__file__).resolve().parent.parent


def own_digest() -> str:
    """The digest of the sources that this program itself runs with."""
    return digest(own_checkout())


def digest(checkout: Path) -> str:
    """sha256 over the sorted paths and contents of the Python files of runtime_image.

    Two images with the same digest run the same code. Raises ImageError for too many files.
    """
    hashed = hashlib.sha256()
    for path in python_files(checkout):
        content = path.read_bytes()
        name = path.relative_to(checkout).as_posix()
        hashed.update(f"{name}\0{len(content)}\0".encode())
        hashed.update(content)
    return f"sha256:{hashed.hexdigest()}"


def python_files(checkout: Path) -> list[Path]:
    """The Python files of runtime_image, sorted by their paths."""
    found = sorted(
        (path for path in (checkout / PACKAGE).rglob("*.py") if path.is_file()),
        key=lambda path: path.relative_to(checkout).as_posix(),
    )
    if len(found) > FILES_MAX or sum(path.stat().st_size for path in found) > BYTES_MAX:
        raise image_error(
            f"{checkout / PACKAGE} has more than {FILES_MAX} files or {BYTES_MAX >> 20} MiB"
        )
    return found


def read_release(checkout: Path) -> Release:
    """Link version, version and digest of a checkout. Raises ImageError where it is none."""
    for name in (DOCKERFILE, CONSTRAINTS, "pyproject.toml", f"{PACKAGE}/contract/link.py"):
        if not (checkout / name).is_file():
            raise image_error(
                f"{checkout} is no checkout of fngate: it has no {name}",
                todo="fnctl image build --context DIR  with the folder of a checkout",
            )
    found = _LINK.search((checkout / PACKAGE / "contract" / "link.py").read_text("utf-8"))
    if found is None:
        raise image_error(f"{checkout / PACKAGE}/contract/link.py names no VERSION")
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
    return Release(int(found[1]), str(project["version"]), digest(checkout))
