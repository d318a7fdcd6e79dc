"""Packages of a folder on this machine: the same locks and environments as a server's, in a cache
of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from admin.cli.dev.folder import Folder
from admin.text import duration, size
from environments.folders import Environment, Environments, EnvironmentSettings
from environments.interpreters import Interpreter, find_interpreters
from environments.lock import TEXT_MAX, Lock, lock_key, read_lock
from environments.programs import Progress, Work
from environments.wheels import FOLDER, read_wheels
from registry.errors import EnvironmentRefused
from registry.files import make_private, unavailable, write_atomic

UNUSED_S: Final = 30 * 24 * 3600.0
"""Seconds after which what no run has used is removed."""
TOLD_S: Final = 5.0
"""Seconds between two lines about the same phase."""
_PHASES: Final = {
    "wait": "waits for another build",
    "resolve": "asks the index",
    "load": "loads packages",
    "check": "checks files",
    "compile": "compiles bytecode",
    "store": "stores it",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a folder's program runs with."""

    interpreter: Interpreter
    environment: Environment


class Packages:
    """Locks and environments of all folders of this user, in `cache/locks` and
    `cache/environments`."""

    def __init__(
        self,
        cache: Path,
        settings: EnvironmentSettings,
        pythons: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        """`pythons` are interpreters by name or path, `say` takes lines for the terminal. Raises
        StoreUnavailable."""
        self._locks = cache / "locks"
        self._say = say
        self._pythons = pythons
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self._locks)
        except OSError as error:
            raise unavailable(error) from error
        self._environments = Environments(cache / "environments", settings)
        self._told = ""

    def prepare(self, folder: Folder, *, refresh: bool = False) -> Prepared:
        """Return interpreter and environment of a folder; what is missing is made.

        With `refresh` the index is asked even if there is a lock. Raises BadNeeds,
        EnvironmentRefused, IndexAway, StoreUnavailable.
        """
        found = find_interpreters(self._pythons)
        interpreter = found.choose(folder.version, folder.needs.requires_python)
        wheels = folder.root / FOLDER
        own = wheels if wheels.is_dir() else None
        lock = self._lock(folder, interpreter, own, refresh=refresh)
        environment = self._environments.find(lock)
        if environment is not None and environment.name == self._told:
            return Prepared(interpreter, environment)  # all has been said
        if environment is None:
            began_s = time.monotonic()
            environment = self._environments.ensure(
                lock, interpreter, Work(self._teller()), wheels=own
            )
            took = duration((time.monotonic() - began_s) * 1e3)
            what = f"{size(environment.size)} in {environment.files} files, built in {took}"
        else:
            what = f"{size(environment.size)}, there already"
        self._environments.use(environment.name, datetime.now(UTC).timestamp())
        self._told = environment.name
        self._say(f"environment  {what}, Python {interpreter.full_version}")
        return Prepared(interpreter, environment)

    def tidy(self) -> None:
        """Remove locks and environments that nothing has used for a month, and what killed builds
        have left; empty the cache of files if it is too large."""
        now_s = datetime.now(UTC).timestamp()
        self._environments.clean()
        self._environments.remove_unused((), now_s, UNUSED_S)
        self._environments.trim_cache()
        for path in self._locks.iterdir():
            with suppress(OSError):
                if path.stat().st_mtime + UNUSED_S < now_s:
                    path.unlink()

    def _lock(
        self, folder: Folder, interpreter: Interpreter, wheels: Path | None, *, refresh: bool
    ) -> Lock:
        """Return the stored lock of equal needs, or a new one, which is stored."""
        own = read_wheels(wheels) if wheels is not None else ()
        key = lock_key(folder.needs, interpreter, own)
        path = self._locks / f"{key}.json"
        stored = None if refresh else _stored(path, key)
        if stored is not None:
            if stored.digest != self._told:
                self._say(f"lock         {_told(stored, folder)}, stored")
            return stored
        began_s = time.monotonic()
        lock = self._environments.resolve(
            folder.needs, interpreter, Work(self._teller()), wheels=wheels, refresh=refresh
        )
        write_atomic(path, lock.text.encode())
        took = duration((time.monotonic() - began_s) * 1e3)
        self._say(f"lock         {_told(lock, folder)}, made in {took}")
        return lock

    def _teller(self) -> Callable[[Progress], None]:
        """Return what says each phase once, and a long one again now and then."""
        last: tuple[str, float] = ("", 0.0)

        def told(progress: Progress) -> None:
            nonlocal last
            now_s = time.monotonic()
            if progress.phase == last[0] and now_s - last[1] < TOLD_S:
                return
            last = progress.phase, now_s
            is_bytes = progress.phase in ("resolve", "load")
            done = size(progress.done) if is_bytes else f"{progress.done} files"
            so_far = f", {done}" if progress.done else ""
            self._say(f"  {_PHASES.get(progress.phase, progress.phase)}{so_far}")

        return told


def _stored(path: Path, key: str) -> Lock | None:
    """Return a stored lock; None if there is none that can be used. Its time becomes the present:
    it is used."""
    try:
        with path.open("rb") as file:
            lock = read_lock(file.read(TEXT_MAX + 1))
        path.touch()
    except (OSError, EnvironmentRefused):
        return None
    return lock if lock.key == key else None


def _told(lock: Lock, folder: Folder) -> str:
    count = len(lock.packages)
    unsized = f" and {lock.unsized} of unknown size" if lock.unsized else ""
    source = folder.needs.source or "no needs of its own"
    return f"{count} package{'s' * (count != 1)}, {size(lock.size)}{unsized} ({source})"
