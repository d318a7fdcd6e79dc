"""The build context: a tar with what the build needs and nothing else."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from admin.image.failures import disk_full, image_error
from admin.image.source import CONSTRAINTS, DOCKERFILE, PACKAGE, python_files

WHEELHOUSE: Final = "wheelhouse"
WHEELS_MAX: Final = 500
WHEEL_BYTES_MAX: Final = 24 * 2**30
MODE: Final = 0o644


def wheels_in(folder: Path) -> list[Path]:
    """The wheels of a wheelhouse, sorted. Raises ImageError for none, or for too many."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".whl")
    except OSError as error:
        raise image_error(f"--wheelhouse: {error}") from error
    total = sum(path.stat().st_size for path in found)
    if not found:
        raise image_error(f"--wheelhouse: there are no wheels (*.whl) in {folder}")
    if len(found) > WHEELS_MAX or total > WHEEL_BYTES_MAX:
        raise image_error(
            f"--wheelhouse: expected at most {WHEELS_MAX} wheels of {WHEEL_BYTES_MAX >> 30} GiB"
            f" together, got {len(found)} of {total >> 30} GiB in {folder}"
        )
    return found


def entries(checkout: Path, wheels: list[Path]) -> Iterator[tuple[str, Path]]:
    """Every file of the context: its name in there, and where it lies."""
    yield DOCKERFILE, checkout / DOCKERFILE
    yield CONSTRAINTS, checkout / CONSTRAINTS
    for path in sorted((checkout / PACKAGE / "requirements").glob("*.txt")):
        yield path.relative_to(checkout).as_posix(), path
    for path in python_files(checkout):
        yield path.relative_to(checkout).as_posix(), path
    for path in wheels:
        yield f"{WHEELHOUSE}/{path.name}", path


def pack(checkout: Path, wheels: list[Path]) -> IO[bytes]:
    """The context as an unnamed temporary file, at its start. It is gone once it is closed.

    Owners, times and modes of this machine are left out. Raises ImageError where the disk is full.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, path in entries(checkout, wheels):
                with path.open("rb") as source:
                    info = tar.gettarinfo(arcname=name, fileobj=source)
                    tar.addfile(_anonymous(info), source)
        file.seek(0)
    except OSError as error:
        file.close()
        raise disk_full(
            f"the build context cannot be written to {tempfile.gettempdir()}: {error}",
            "TMPDIR=DIR fnctl image build  with a folder that has room",
        ) from error
    except BaseException:
        file.close()
        raise
    return file


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = MODE
    return info
