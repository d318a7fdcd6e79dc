"""The steps of a build: install, compare with RECORD, compile, make read-only and durable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from environments.bytecode import compile_all
from environments.entry_points import BIN, bin_files, console_scripts
from environments.interpreters import Interpreter
from environments.lock import Lock
from environments.locking import locked
from environments.programs import Ended, Limits, Program, Work, run
from environments.records import Contents, check_records
from environments.trees import make_durable, make_read_only, remove_tree
from environments.uv import Uv, failure
from registry.errors import EnvironmentRefused
from registry.files import make_private

log = structlog.get_logger()

INSTALL_S: Final = 3600.0
"""Most seconds of an installation, in which all files are loaded."""
TARGET_LOCK: Final = ".lock"
"""uv's own lock of the folder."""


@dataclass(frozen=True, slots=True)
class Build:
    """What is built, and where."""

    lock: Lock
    interpreter: Interpreter
    wheels: Path | None
    packages: Path
    final: Path
    """Later name of `packages`."""
    temporary: Path
    limit: int
    is_copy: bool
    """Whether files are copied, not linked to those of the cache."""
    held: int
    """Descriptor of the lock of builds."""
    cache_lock: Path


@dataclass(frozen=True, slots=True)
class Built:
    """What a build found."""

    size: int
    files: int
    scripts: dict[str, str]
    programs: dict[str, bool]

    @staticmethod
    def seal(folder: Path) -> None:
        """Make the whole folder read-only and durable. Raises OSError."""
        make_read_only(folder)
        make_durable(folder)


def build(asked: Build, uv: Uv, work: Work) -> Built:
    """Fill the folder of packages. Raises EnvironmentRefused, IndexAway, StoreUnavailable,
    WorkCancelled, OSError."""
    contents = _install(asked, uv, work)
    scripts = console_scripts(asked.packages, contents.files)
    programs = bin_files(asked.packages, contents.files, scripts)
    for name in scripts:
        # uv has written it for this interpreter; a shell writes its own.
        (asked.packages / BIN / name).unlink(missing_ok=True)
    folders = asked.packages, asked.final, asked.temporary
    compile_all(asked.interpreter, folders, contents.files, work, (asked.held,))
    return Built(contents.size, len(contents.files), scripts, programs)


def _install(asked: Build, uv: Uv, work: Work) -> Contents:
    """Install from the cache if it has all, else from the index. What does not fit its RECORD is
    loaded once more, into a cache of its own: then either the cache was changed, or the wheel is
    like that."""
    if _sync(asked, uv, work, is_offline=True).code:
        _load(asked, uv, work)
    try:
        return _check(asked, work)
    except EnvironmentRefused as error:
        log.warning("packages did not fit their RECORD: they are loaded anew", error=error.message)
    _load(asked, replace(uv, cache=asked.temporary / "cache"), work)
    contents = _check(asked, work)
    log.warning("files in the cache of packages had changed: it is emptied", cache=str(uv.cache))
    with locked(asked.cache_lock, work):
        empty_cache(uv.cache)
    return contents


def _load(asked: Build, uv: Uv, work: Work) -> None:
    ended = _sync(asked, uv, work, is_offline=False)
    if ended.code:
        raise failure(ended, "installing the locked packages")


def _check(asked: Build, work: Work) -> Contents:
    (asked.packages / TARGET_LOCK).unlink(missing_ok=True)
    contents = check_records(asked.packages, asked.lock, work)
    if contents.size > asked.limit:
        raise EnvironmentRefused(
            f"expected at most {asked.limit >> 20} MiB (FN_ENVIRONMENT_MIB),"
            f" got {contents.size >> 20} MiB of files"
        )
    return contents


def _sync(asked: Build, uv: Uv, work: Work, *, is_offline: bool) -> Ended:
    remove_tree(asked.packages)
    asked.packages.mkdir()
    lines = asked.temporary / "locked.txt"
    lines.write_text(asked.lock.sync_lines)
    words: list[str | Path] = ["--target", asked.packages, "--python", asked.interpreter.path]
    words += ["--require-hashes", "--link-mode", "copy" if asked.is_copy else "hardlink"]
    if asked.wheels is not None:
        words += ["--find-links", asked.wheels]
    if is_offline:
        words += ["--offline"]
    command = uv.command("pip", "sync", "--quiet", *words, lines)
    limits = Limits(INSTALL_S, asked.limit + asked.lock.size)
    with locked(asked.cache_lock, work, shared=True) as cache:
        held = (asked.held, cache)
        return run(Program(command, asked.temporary, uv.environment, held), limits, work, "load")


def empty_cache(cache: Path) -> None:
    """Remove all that a cache has. Raises OSError."""
    remove_tree(cache)
    make_private(cache)
