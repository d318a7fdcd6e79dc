"""The files of an environment against the RECORD of each package.

uv compares a wheel with its hash when it loads it, and not when it takes the files from its cache:
whatever could write to another environment may have changed them through hard links. So each file
is compared with its RECORD in every build. RECORD itself is never linked.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from environments.lock import Lock
from environments.programs import Progress, Work
from registry.errors import EnvironmentRefused

FILES_MAX: Final = 500_000
RECORD_MAX: Final = 64 * 1024 * 1024
"""Max bytes of a RECORD."""
THREADS: Final = 4
STEP: Final = 256
"""Files between two looks at cancellation."""
INFO: Final = ".dist-info"
_UNLISTED: Final = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s"})
_HASHES: Final = frozenset({"sha256", "sha384", "sha512"})


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder of packages has."""

    files: tuple[str, ...]
    """Paths below the folder, sorted."""
    size: int
    """Bytes of all files."""


def check_records(folder: Path, lock: Lock, work: Work) -> Contents:
    """Return the files of a folder, each of which is as a RECORD says, for the packages of a lock.

    Raises EnvironmentRefused, naming the file, for one that is changed, absent or in no RECORD, for
    a link or another entry that is no file, and for a package that is missing or is not locked.
    """
    sizes = dict(_walk(folder))
    infos = sorted({path.split("/")[0] for path in sizes if path.split("/")[0].endswith(INFO)})
    _check_packages(infos, lock)
    listed: dict[str, set[str]] = {}
    for info in infos:
        for path, value in _read_record(folder, info):
            listed.setdefault(path, set()).add(value)
    unlisted = {f"{info}/{name}" for info in infos for name in _UNLISTED}
    for path in sorted(listed.keys() - sizes.keys() - unlisted):
        raise _odd(path, "a file", "none")
    for path in sorted(sizes.keys() - listed.keys() - unlisted):
        raise _odd(path, "a file that a RECORD names", "another one")
    _compare(folder, {path: listed[path] for path in sizes if path not in unlisted}, work)
    return Contents(tuple(sorted(sizes)), sum(sizes.values()))


def _walk(folder: Path, below: str = "") -> Iterator[tuple[str, int]]:
    """Yield path and size of each file."""
    count = 0
    waiting = [below]
    while waiting:
        at = waiting.pop()
        with os.scandir(folder / at) as entries:
            for entry in entries:
                path = f"{at}/{entry.name}" if at else entry.name
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
                    continue
                if not stat.S_ISREG(found.st_mode):
                    raise _odd(path, "a file or a folder", "something else")
                count += 1
                if count > FILES_MAX:
                    raise EnvironmentRefused(f"expected at most {FILES_MAX} files, got more")
                yield path, found.st_size


def _check_packages(infos: list[str], lock: Lock) -> None:
    wanted = {one.name: one.version for one in lock.packages}
    for info in infos:
        name, _, version = info.removesuffix(INFO).rpartition("-")
        expected = wanted.pop(canonicalize_name(name), None)
        if expected is None or not _same(expected, version):
            raise _odd(info, f"the version {expected}" if expected else "a locked package", version)
    if wanted:
        raise EnvironmentRefused(f"expected the package {min(wanted)}, which is not there")


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _read_record(folder: Path, info: str) -> Iterator[tuple[str, str]]:
    """Yield path and hash of each file of a RECORD."""
    record = folder / info / "RECORD"
    try:
        if record.stat().st_size > RECORD_MAX:
            raise _odd(f"{info}/RECORD", f"at most {RECORD_MAX} bytes", "more")
        with record.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if row:
                    yield row[0], row[1] if len(row) > 1 else ""
    except FileNotFoundError as error:
        raise _odd(f"{info}/RECORD", "a file", "none") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise _odd(f"{info}/RECORD", "lines of path, hash and size", str(error)) from error


def _compare(folder: Path, listed: dict[str, set[str]], work: Work) -> None:
    paths = sorted(listed)

    def is_right(path: str) -> bool:
        return bool(listed[path]) and any(_fits(folder / path, each) for each in listed[path])

    with ThreadPoolExecutor(THREADS, "records") as pool:
        for at in range(0, len(paths), STEP):
            work.check()
            work.told(Progress("check", at, len(paths)))
            some = paths[at : at + STEP]
            for path, right in zip(some, pool.map(is_right, some), strict=True):
                if not right:
                    raise _odd(path, "the file of its wheel (RECORD)", "another one")
    work.told(Progress("check", len(paths), len(paths)))


def _fits(path: Path, value: str) -> bool:
    """Return whether a file has a hash like `sha256=...` in base64."""
    kind, _, expected = value.partition("=")
    if kind not in _HASHES:
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, kind).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected.rstrip("=")


def _odd(path: str, expected: str, got: str) -> EnvironmentRefused:
    return EnvironmentRefused(f"{path[:200]!a}: expected {expected}, got {got[:100]}")
