"""The lock of a function: each package with its version, the hashes of its files and their size.

Plain data, made once and kept with the revision. Equal needs on equal interpreters have the same
`key`, so that a lock is used again without asking an index; its `digest` names the environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from environments.interpreters import Interpreter
from environments.needs import Needs
from environments.requirement import SHA256
from environments.wheels import Wheel
from registry.bounded_text import read_json
from registry.errors import BadRequest, EnvironmentRefused

SCHEMA: Final = 1
"""Version of the text form, and of the folders that are made from it."""
TEXT_MAX: Final = 1024 * 1024
"""Max bytes of a lock's text."""
PACKAGES_MAX: Final = 1_000
NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
VERSION: Final = re.compile(r"[a-z0-9][a-z0-9.+!]{0,99}")
_PYTHON: Final = re.compile(r"3\.[0-9]{1,3}t?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_KEY: Final = re.compile(r"[0-9a-f]{64}")


class LockedPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One package: any of the files with these hashes may be installed."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """`sha256:HEX`, sorted."""
    size: int | None = None
    """Bytes of the largest of these files; None if the index does not say."""
    bundled: bool = False
    """Whether its file is one of the bundle's folder `wheels/`."""


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All packages of an environment, for one kind of interpreter."""

    key: str
    """`lock_key` of what it was made from."""
    python: str
    """`3.11`."""
    platform: str
    libc: str
    packages: tuple[LockedPackage, ...]
    """Sorted by name."""
    schema: int = SCHEMA

    @property
    def size(self) -> int:
        """Bytes of all files as far as indexes say it."""
        return sum(one.size or 0 for one in self.packages)

    @property
    def unsized(self) -> int:
        """Number of packages whose size no index says."""
        return sum(1 for one in self.packages if one.size is None)

    @property
    def digest(self) -> str:
        """Name of the environment: 64 hex digits. Functions with equal ones share a folder."""
        packages = [[one.name, one.version, *one.hashes] for one in self.packages]
        return _digest([SCHEMA, self.python, self.platform, self.libc, packages])

    @property
    def text(self) -> str:
        """The lock as text, the same for equal locks: a line for each package."""
        packages = ",\n".join(_line(msgspec.to_builtins(one)) for one in self.packages)
        head = {"schema": self.schema, "key": self.key, "python": self.python}
        head |= {"platform": self.platform, "libc": self.libc}
        return f'{_line(head)[:-1]},"packages":[\n{packages}\n]}}\n'

    @property
    def sync_lines(self) -> str:
        """The lock as requirements with hashes, which uv installs as they are."""
        return "".join(
            " ".join([f"{one.name}=={one.version}", *(f"--hash={each}" for each in one.hashes)])
            + "\n"
            for one in self.packages
        )

    def fits(self, interpreter: Interpreter) -> bool:
        """Return whether the packages are made for an interpreter, whatever its patch version."""
        mine = (self.python, self.platform, self.libc)
        return mine == (interpreter.python, interpreter.platform, interpreter.libc)


def lock_key(needs: Needs, interpreter: Interpreter, wheels: Iterable[Wheel] = ()) -> str:
    """Return what is equal for all that have the same lock: needs, wheels of their own,
    interpreter but for its patch version."""
    hashes = sorted([one.line, *one.hashes] for one in (*needs.requirements, *needs.pins))
    own = sorted([one.name, one.version, one.sha256] for one in wheels)
    there = [interpreter.python, interpreter.platform, interpreter.libc]
    return _digest([SCHEMA, needs.lines, needs.pin_lines, hashes, own, there])


def read_lock(text: str | bytes) -> Lock:
    """Return the lock of a text. Raises EnvironmentRefused for what is none."""
    data = text.encode() if isinstance(text, str) else text
    if len(data) > TEXT_MAX:
        raise EnvironmentRefused(f"lock: expected at most {TEXT_MAX} bytes, got {len(data)}")
    try:
        found = read_json(data, Lock, "lock")
    except BadRequest as error:
        raise EnvironmentRefused(error.message) from error
    check_lock(found)
    return found


def check_lock(lock: Lock) -> None:
    """Raise EnvironmentRefused unless all texts of a lock have the form that we give them."""
    if lock.schema != SCHEMA:
        raise EnvironmentRefused(f"lock: expected schema {SCHEMA}, got {lock.schema}")
    plain = _PLAIN.fullmatch(lock.platform) and _PLAIN.fullmatch(lock.libc)
    if not (plain and _PYTHON.fullmatch(lock.python) and _KEY.fullmatch(lock.key)):
        raise EnvironmentRefused(
            "lock: expected a key, Python, platform and libc, got another text"
        )
    if not 0 < len(lock.packages) <= PACKAGES_MAX:
        got = len(lock.packages)
        raise EnvironmentRefused(f"lock: expected 1 to {PACKAGES_MAX} packages, got {got}")
    names = [one.name for one in lock.packages]
    if names != sorted(set(names)):
        raise EnvironmentRefused("lock: expected each package once, sorted by name")
    for one in lock.packages:
        _check_package(one)


def _check_package(one: LockedPackage) -> None:
    if not (NAME.fullmatch(one.name) and VERSION.fullmatch(one.version)):
        got = f"{one.name[:80]!r} {one.version[:80]!r}"
        raise EnvironmentRefused(f"lock: expected a name and a version, got {got}")
    if not one.hashes or not all(map(SHA256.fullmatch, one.hashes)):
        raise EnvironmentRefused(f"lock: expected sha256 hashes of {one.name}, got none or others")
    if list(one.hashes) != sorted(set(one.hashes)) or (one.size or 0) < 0:
        raise EnvironmentRefused(f"lock: expected sorted hashes and a size of {one.name}")


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _digest(value: object) -> str:
    return hashlib.sha256(_line(value).encode()).hexdigest()
