"""Making a lock: uv chooses versions for our lines, and its answer is checked and cut down."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from environments.interpreters import Interpreter
from environments.lock import Lock, LockedPackage, check_lock, lock_key
from environments.needs import Needs
from environments.programs import Limits, Program, Work, run
from environments.uv import Uv, failure
from environments.wheels import Wheel
from registry.bounded_text import read_toml
from registry.errors import BadManifest, EnvironmentRefused

RESOLVE_S: Final = 300.0
"""Most seconds of a resolution, which asks an index for each package."""
ANSWER_MAX: Final = 4 * 1024 * 1024
ANSWER_KEYS_MAX: Final = 100_000
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Resolution:
    """What is asked of uv."""

    needs: Needs
    interpreter: Interpreter
    wheels: tuple[Wheel, ...] = ()
    wheels_folder: Path | None = None
    limit: int = 8 << 30
    """Max bytes of all files."""
    refresh: bool = False
    """Whether the index is asked even if the cache has its answer."""


def resolve(
    asked: Resolution, uv: Uv, folder: Path, work: Work, held: tuple[int, ...] = ()
) -> Lock:
    """Return the lock of some needs, made in an empty folder.

    Raises EnvironmentRefused, IndexAway, StoreUnavailable, WorkCancelled; OSError.
    """
    there = asked.interpreter
    numbers = ".".join(map(str, there.version))
    if numbers not in SpecifierSet(asked.needs.requires_python, prereleases=True):
        expected = f"Python {asked.needs.requires_python} ({asked.needs.source})"
        raise EnvironmentRefused(f"expected {expected}, got {there.full_version}")
    needs, pins, answer = (folder / name for name in ("needs.in", "pins.txt", "pylock.made.toml"))
    own = [f"{one.name}=={one.version}" for one in asked.wheels]
    needs.write_text("".join(f"{line}\n" for line in asked.needs.lines))
    pins.write_text("".join(f"{line}\n" for line in sorted({*asked.needs.pin_lines, *own})))
    words: list[str | Path] = ["--python", there.path]
    words += ["--python-version", f"{there.version[0]}.{there.version[1]}", "--no-header"]
    words += ["--format", "pylock.toml", "--constraints", pins, "--output-file", answer]
    words += ["--quiet", *(["--refresh"] if asked.refresh else [])]
    if asked.wheels_folder is not None:
        words += ["--find-links", asked.wheels_folder]
    command = uv.command("pip", "compile", *words, needs)
    ended = run(
        Program(command, folder, uv.environment, held),
        Limits(RESOLVE_S, asked.limit),
        work,
        "resolve",
    )
    if ended.code:
        raise failure(ended, "resolving the needed packages")
    lock = Lock(
        lock_key(asked.needs, there, asked.wheels),
        *(there.python, there.platform, there.libc),
        _packages(answer, asked),
    )
    check_lock(lock)
    check_size(lock, asked.limit)
    return lock


def check_size(lock: Lock, limit: int) -> None:
    """Raise EnvironmentRefused if the files of a lock are too large together."""
    if lock.size > limit:
        largest = sorted(lock.packages, key=lambda one: -(one.size or 0))[:3]
        parts = ", ".join(f"{one.name} {(one.size or 0) / MIB:.0f}" for one in largest)
        raise EnvironmentRefused(
            f"expected packages of at most {limit // MIB} MiB (FN_ENVIRONMENT_MIB),"
            f" got {len(lock.packages)} of {lock.size / MIB:.0f} MiB; the largest: {parts}"
        )


def _packages(answer: Path, asked: Resolution) -> tuple[LockedPackage, ...]:
    """Return the packages of uv's answer."""
    try:
        with answer.open("rb") as file:
            text = file.read(ANSWER_MAX + 1).decode("utf-8")
        document = read_toml(text, answer.name, size_max=ANSWER_MAX, keys_max=ANSWER_KEYS_MAX)
        own = {one.name: [w for w in asked.wheels if w.name == one.name] for one in asked.wheels}
        allowed = _allowed(asked.needs)
        packages = [_package(one, own, allowed) for one in document.get("packages", [])]
    except (BadManifest, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentRefused(f"expected a lock of uv, got: {error!s:.200}") from error
    return tuple(sorted(packages, key=lambda one: one.name))


def _package(
    one: Mapping[str, Any], own: Mapping[str, Sequence[Wheel]], allowed: Mapping[str, set[str]]
) -> LockedPackage:
    name, version, wheels = str(one["name"]), str(one["version"]), one.get("wheels", [])
    sizes: dict[str, int | None]
    if name in own:
        # An index may have the same name and version: only the bundle's file counts.
        sizes = {f"sha256:{wheel.sha256}": wheel.size for wheel in own[name]}
    else:
        sizes = {f"sha256:{wheel['hashes']['sha256']}": _size(wheel) for wheel in wheels}
    if not sizes:
        raise EnvironmentRefused(
            f"{name} {version}: expected a wheel, got none; build one:"
            f" pip wheel --no-deps --wheel-dir wheels {name}=={version}"
        )
    if name in allowed:
        found = ", ".join(sorted(sizes))
        sizes = {value: size for value, size in sizes.items() if value in allowed[name]}
        if not sizes:
            expected = "a file with one of the given hashes"
            raise EnvironmentRefused(f"{name} {version}: expected {expected}, got {found}")
    known = [size for size in sizes.values() if size is not None]
    size = max(known) if len(known) == len(sizes) else None
    return LockedPackage(name, version, tuple(sorted(sizes)), size, name in own)


def _size(wheel: Mapping[str, Any]) -> int | None:
    """Return the bytes of a wheel; None if its index does not say."""
    size = wheel.get("size")
    if isinstance(size, int) and size >= 0:
        return size
    address = urllib.parse.urlsplit(str(wheel.get("url", "")))
    if address.scheme != "file":
        return None
    # The operator's file names this folder; uv has read the same file.
    return Path(urllib.parse.unquote(address.path)).stat().st_size


def _allowed(needs: Needs) -> dict[str, set[str]]:
    """Return the hashes of each package that has some wherever it is named."""
    found: dict[str, set[str]] = {}
    for given in (needs.requirements, needs.pins):
        names = {one.name for one in given} - {one.name for one in given if not one.hashes}
        for name in names:
            hashes = {value for one in given if one.name == name for value in one.hashes}
            found[name] = found[name] & hashes if name in found else hashes
    return found
