"""Interpreters that functions may run with: found by name or path, each asked once."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from packaging.specifiers import SpecifierSet

from environments.programs import SEARCH, Limits, Program, Work, run
from registry.errors import EnvironmentRefused, FnError

OLDEST: Final = (3, 11)
"""The oldest version that a function may have: that of the server."""
ASK_S: Final = 10.0
QUESTION: Final = """
import json, os, sys, sysconfig
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION")
except (OSError, ValueError):
    libc = None
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": list(sys.version_info[:3]),
    "abi": "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "",
    "platform": sysconfig.get_platform(),
    "libc": (libc or "musl").replace(" ", "-"),
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
}))
"""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_VERSION: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(t?)")


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    implementation: str
    version: tuple[int, int, int]
    abi: str
    platform: str
    libc: str
    path: str


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One interpreter, as it answered."""

    path: Path
    """Its file, without links and without a virtual environment around it."""
    version: tuple[int, int, int]
    abi: str
    """`t` without the global lock, else ""."""
    platform: str
    """`linux-x86_64`."""
    libc: str
    """`glibc-2.36` or `musl`."""

    @property
    def python(self) -> str:
        """Major and minor version, `3.11`: packages are made for these."""
        return f"{self.version[0]}.{self.version[1]}{self.abi}"

    @property
    def full_version(self) -> str:
        """The version with its patch, `3.11.7`."""
        return ".".join(map(str, self.version)) + self.abi


@dataclass(frozen=True, slots=True)
class Interpreters:
    """What FN_PYTHONS names: what was found, in its order, and why the others are not there."""

    found: tuple[Interpreter, ...]
    errors: tuple[str, ...] = ()

    def choose(self, wanted: str = "", requires: str = "") -> Interpreter:
        """Return the first one of a version, `3.12` or `3.12.1`, that fits `requires`, `>=3.11`.

        Raises EnvironmentRefused, naming those that are there.
        """
        match = _VERSION.fullmatch(wanted)
        if wanted and match is None:
            raise EnvironmentRefused(f"python: expected a version like 3.12, got {wanted[:40]!r}")
        versions = SpecifierSet(requires, prereleases=True)
        for one in self.found:
            numbers = ".".join(map(str, one.version))
            if (not match or _is(one, match)) and numbers in versions:
                return one
        there = ", ".join(one.full_version for one in self.found) or "none"
        expected = " ".join(filter(None, (f"Python {wanted}".strip(), requires)))
        broken = "; ".join(("", *self.errors))
        raise EnvironmentRefused(
            f"expected {expected}, this server has {there} (FN_PYTHONS names others){broken}"
        )


def _is(one: Interpreter, wanted: re.Match[str]) -> bool:
    numbers = tuple(int(part) for part in wanted.group(1, 2, 3) if part is not None)
    return one.version[: len(numbers)] == numbers and one.abi == wanted[4]


def find_interpreters(names: Sequence[str] = (), search: str = SEARCH) -> Interpreters:
    """Ask interpreters what they are; `names` are paths, or names that are looked up in the folders
    of `search`. None is the one that runs this. Takes some 20 ms for each."""
    found: list[Interpreter] = []
    errors: list[str] = []
    for name in names or (sys.executable,):
        try:
            one = ask(_path(name, search))
        except FnError as error:
            errors.append(f"{name}: {error.message}")
        else:
            if one not in found:
                found.append(one)
    return Interpreters(tuple(found), tuple(errors))


def _path(name: str, search: str) -> Path:
    if name.startswith("/"):
        return Path(name)
    path = shutil.which(name, path=search) if _NAME.fullmatch(name) else None
    if path is None:
        expected = f"an absolute path, or the name of a program in {search}"
        raise EnvironmentRefused(f"expected {expected}, got {name[:80]!r}")
    return Path(path)


def ask(path: Path) -> Interpreter:
    """Return what the interpreter at a path is.

    Raises EnvironmentRefused if it is none, does not answer, or is too old.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = Program([path, "-I", "-S", "-c", QUESTION], Path(folder))
            ended = run(program, Limits(ASK_S), Work())
        answer = msgspec.json.decode(ended.out, type=_Answer)
    except OSError as error:
        raise EnvironmentRefused(f"expected a Python interpreter, got: {error}") from error
    except msgspec.DecodeError as error:
        said = (ended.text.strip().splitlines() or [f"exit code {ended.code}, no answer"])[-1]
        raise EnvironmentRefused(f"expected a Python interpreter, got: {said[:200]}") from error
    if answer.implementation != "cpython" or answer.version[:2] < OLDEST:
        got = f"{answer.implementation[:20]} {'.'.join(map(str, answer.version))}"
        raise EnvironmentRefused(f"expected CPython 3.11 or newer, got {got}")
    if not all(map(_PLAIN.fullmatch, (answer.platform, answer.libc))):
        raise EnvironmentRefused("expected a plain platform and libc, got another text")
    return Interpreter(Path(answer.path), answer.version, answer.abi, answer.platform, answer.libc)
