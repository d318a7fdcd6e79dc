"""Folders of packages, `DATA/environments/DIGEST`: made once for a lock, shared, never changed."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from environments.building import Build, build, empty_cache
from environments.interpreters import Interpreter
from environments.lock import Lock, read_lock
from environments.locking import locked, locked_if_free
from environments.needs import Needs
from environments.programs import Progress, Work
from environments.resolving import Resolution, check_size, resolve
from environments.trees import remove_tree, size_of, sizes_of
from environments.uv import Uv, find_uv
from environments.wheels import read_wheels
from registry.errors import EnvironmentRefused, StoreUnavailable, Unknown
from registry.files import free_bytes, fsync_folder, make_private, unavailable

log = structlog.get_logger()

BUILD: Final = ".build-"
RESOLVE: Final = ".resolve-"
GONE: Final = ".gone-"
CACHE: Final = ".cache"
BUILD_LOCK: Final = ".build.lock"
CACHE_LOCK: Final = ".cache.lock"
PACKAGES: Final = "packages"
LOCK_FILE: Final = "lock.json"
ABOUT_FILE: Final = "about.json"
UNUSED_S: Final = 24 * 3600.0
"""Seconds that an environment stays after the last revision that names it."""
ABOUT_MAX: Final = 1024 * 1024
_NAME: Final = re.compile(r"[0-9a-f]{64}(?:\.[a-z0-9-]{1,63})?")
_OWNER: Final = re.compile(r"[a-z0-9-]{1,63}")


class _About(msgspec.Struct, frozen=True):
    """What a build found; a file of the environment."""

    built_with: str
    size: int
    files: int
    scripts: dict[str, str]
    programs: dict[str, bool]
    own: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is complete."""

    name: str
    """Name of its folder: the lock's digest, with `.OWNER` for a copy of one function's own."""
    folder: Path
    lock: Lock
    built_with: str
    """Version of the interpreter that made the bytecode, `3.11.7`."""
    size: int
    """Bytes of the packages' files, without bytecode."""
    own: int
    """Bytes of the files that nothing shared when it was built, such as bytecode."""
    shared: int
    """Bytes of the files that were hard links to those of the cache and of other environments."""
    files: int
    scripts: dict[str, str]
    """Console scripts as `module:function`, by name."""
    programs: dict[str, bool]
    """Other programs of packages by name, and whether Python runs them."""
    used_s: float
    """Seconds since the epoch at which something last needed it: a revision that names it, or a
    deploy."""
    started_s: float
    """Seconds since the epoch of the last start with it, or of its build."""

    @property
    def packages(self) -> Path:
        """The folder that a shell links as `site-packages`."""
        return self.folder / PACKAGES


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """What an operator decides."""

    config: Path | None = None
    """FN_UV_CONFIG: a uv.toml with indexes, logins, mirrors. None for PyPI."""
    limit: int = 8 << 30
    """FN_ENVIRONMENT_MIB in bytes: the most that the files of an environment may have."""
    cache_max: int = 20 << 30
    """Bytes over which the cache is emptied."""


class Environments:
    """All environments of a data folder. Methods may be called in any thread and by several
    processes; those that take a `Work` take long."""

    def __init__(self, root: Path, settings: EnvironmentSettings) -> None:
        """`root` is created. Raises StoreUnavailable."""
        self.root = root
        self._settings = settings
        try:
            root.mkdir(parents=True, exist_ok=True)
            make_private(root / CACHE)
        except OSError as error:
            raise unavailable(error) from error

    def resolve(
        self,
        needs: Needs,
        interpreter: Interpreter,
        work: Work,
        *,
        wheels: Path | None = None,
        refresh: bool = False,
    ) -> Lock:
        """Ask the index for the lock of some needs; `wheels` is a folder with wheels of the bundle.

        Nothing is installed. Raises BadNeeds, EnvironmentRefused, IndexAway, StoreUnavailable,
        WorkCancelled.
        """
        with self._errors():
            own = read_wheels(wheels) if wheels is not None else ()
            asked = Resolution(needs, interpreter, own, wheels, self._settings.limit, refresh)
            with (
                self._work_folder(RESOLVE) as folder,
                locked(self.root / CACHE_LOCK, work, shared=True) as held,
            ):
                return resolve(asked, self._uv(), folder, work, (held,))

    def find(self, lock: Lock, owner: str = "") -> Environment | None:
        """Return the environment of a lock if it is there; `owner` as in `ensure`."""
        return self._read(environment_name(lock, owner))

    def read(self, name: str) -> Environment | None:
        """Return an environment by its name if it is there. Raises Unknown for what is no name,
        StoreUnavailable, EnvironmentRefused."""
        return self._read(name)

    def ensure(
        self,
        lock: Lock,
        interpreter: Interpreter,
        work: Work,
        *,
        wheels: Path | None = None,
        owner: str = "",
    ) -> Environment:
        """Return the environment of a lock, which is built if it is not there.

        Builds follow each other, those of other processes too. With `owner`, the name of a
        function, it is a copy of its own that shares no file with others: for servers whose
        functions could write to it. Raises EnvironmentRefused, IndexAway, StoreUnavailable,
        WorkCancelled; then nothing has changed.
        """
        name = environment_name(lock, owner)
        if (found := self._read(name)) is not None:
            # `remove_unused` must not remove the environment before a revision names it.
            with contextlib.suppress(OSError):
                os.utime(found.folder)
            return found
        if not lock.fits(interpreter):
            expected = f"Python {lock.python} on {lock.platform} with {lock.libc}"
            raise EnvironmentRefused(f"expected {expected}, got {interpreter.full_version}")
        if wheels is None and (own := [one.name for one in lock.packages if one.bundled]):
            raise EnvironmentRefused(f"expected the bundle's wheels of {', '.join(own)}, got none")
        check_size(lock, self._settings.limit)
        with self._errors(), locked(self.root / BUILD_LOCK, work) as held:
            if (found := self._read(name)) is not None:
                return found
            self._remove_leftovers(BUILD, GONE)
            if lock.size > (free := free_bytes(self.root)):
                raise StoreUnavailable(f"disk full: expected {lock.size} bytes free, got {free}")
            self._build(lock, interpreter, work, (name, wheels, held))
        found = self._read(name)
        if found is None:
            raise EnvironmentRefused(f"expected the environment {name}, which was removed")
        return found

    def _build(
        self, lock: Lock, interpreter: Interpreter, work: Work,
        place: tuple[str, Path | None, int],
    ) -> None:  # fmt: skip
        name, wheels, held = place
        with self._work_folder(BUILD) as folder, self._work_folder(BUILD) as temporary:
            made = build(
                Build(
                    lock=lock,
                    interpreter=interpreter,
                    wheels=wheels,
                    packages=folder / PACKAGES,
                    final=self.root / name / PACKAGES,
                    temporary=temporary,
                    limit=self._settings.limit,
                    is_copy="." in name,
                    held=held,
                    cache_lock=self.root / CACHE_LOCK,
                ),
                self._uv(),
                work,
            )
            own, shared = sizes_of(folder / PACKAGES)
            about = _About(
                interpreter.full_version,
                made.size,
                made.files,
                made.scripts,
                made.programs,
                own,
                shared,
            )
            (folder / LOCK_FILE).write_text(lock.text)
            (folder / ABOUT_FILE).write_bytes(msgspec.json.encode(about))
            work.told(Progress("store"))
            made.seal(folder)
            work.check()
            folder.rename(self.root / name)
            fsync_folder(self.root)

    def listed(self) -> list[Environment]:
        """Return all environments that can be read, the one that was used last first."""
        found = []
        for path in self.root.iterdir():
            if not _NAME.fullmatch(path.name):
                continue
            try:
                one = self._read(path.name)
            except (StoreUnavailable, EnvironmentRefused) as error:
                log.warning("an environment cannot be read", name=path.name, error=error.message)
                continue
            found += [one] if one else []
        return sorted(found, key=lambda one: -one.used_s)

    def use(self, name: str, now_s: float) -> None:
        """Note that something needs an environment at a time; one that is absent is no error."""
        with contextlib.suppress(OSError):
            os.utime(self.root / _checked(name), (now_s, now_s))

    def note_start(self, name: str) -> None:
        """Note that a program starts with an environment now; one that is absent is no error."""
        with contextlib.suppress(OSError):
            os.utime(self.root / _checked(name) / ABOUT_FILE)

    def remove(self, name: str) -> None:
        """Remove an environment. Raises Unknown, StoreUnavailable."""
        gone = self.root / f"{GONE}{secrets.token_hex(8)}"
        with self._errors():
            try:
                (self.root / _checked(name)).rename(gone)
            except FileNotFoundError as error:
                raise Unknown(f"There is no environment {name}") from error
            remove_tree(gone)

    def remove_unused(
        self, named: Collection[str], now_s: float, unused_s: float = UNUSED_S
    ) -> list[Environment]:
        """Remove what is not among `named` (`environment_name`) and nothing has used for a time;
        return it."""
        removed = []
        for one in self.listed():
            if one.name not in named and one.used_s + unused_s < now_s:
                with contextlib.suppress(Unknown):
                    self.remove(one.name)
                    removed.append(one)
        return removed

    def trim_cache(self) -> bool:
        """Empty the cache if it is over its limit and nothing uses it; return whether it was."""
        with self._errors(), self._alone() as is_alone:
            if not is_alone or size_of(self.root / CACHE) <= self._settings.cache_max:
                return False
            empty_cache(self.root / CACHE)
            return True

    def clean(self) -> None:
        """Remove what killed builds and removals have left, unless another process builds."""
        with self._errors(), self._alone() as is_alone:
            if is_alone:
                self._remove_leftovers(BUILD, GONE, RESOLVE)

    def _uv(self) -> Uv:
        return Uv(find_uv(), self.root / CACHE, self._settings.config)

    def _read(self, name: str) -> Environment | None:
        folder = self.root / _checked(name)
        try:
            text = (folder / LOCK_FILE).read_bytes()
            with (folder / ABOUT_FILE).open("rb") as file:
                about = msgspec.json.decode(file.read(ABOUT_MAX), type=_About)
                started_s = os.fstat(file.fileno()).st_mtime
            used_s = folder.stat().st_mtime
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            reason = f"the environment {name} cannot be read: {error}; remove its folder"
            raise StoreUnavailable(reason) from error
        return Environment(
            name,
            folder,
            read_lock(text),
            about.built_with,
            about.size,
            about.own,
            about.shared,
            about.files,
            about.scripts,
            about.programs,
            used_s,
            started_s,
        )

    @contextlib.contextmanager
    def _work_folder(self, prefix: str) -> Iterator[Path]:
        folder = self.root / f"{prefix}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o755)
        try:
            yield folder
        finally:
            # After the rename there is none.
            with contextlib.suppress(OSError):
                remove_tree(folder)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold both locks if they are free, and yield whether they are held."""
        with locked_if_free(self.root / BUILD_LOCK) as is_building:
            if not is_building:
                yield False
                return
            with locked_if_free(self.root / CACHE_LOCK) as is_caching:
                yield is_caching

    def _remove_leftovers(self, *prefixes: str) -> None:
        for path in self.root.iterdir():
            if path.name.startswith(prefixes):
                log.info("what a killed build has left is removed", name=path.name)
                remove_tree(path)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unavailable(error) from error


def environment_name(lock: Lock, owner: str = "") -> str:
    """Return the name of a lock's environment, or of the copy that a function `owner` has. Raises
    EnvironmentRefused for what is no function's name."""
    if owner and not _OWNER.fullmatch(owner):
        raise EnvironmentRefused(f"expected the name of a function, got {owner[:80]!r}")
    return f"{lock.digest}.{owner}" if owner else lock.digest


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Unknown(f"There is no environment {name[:80]!r}: expected 64 hex digits")
    return name
