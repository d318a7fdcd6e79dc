"""Cuts of `requirements.lock`: what some requirements need, with the hashes of all their files.

`python runtime_image/lock.py 'fngate[cpu]' pip` prints requirements for `pip install
--require-hashes --no-deps -r FILE` (or `uv pip install`). `fngate` and its extras are those of
pyproject.toml, with what builds it. A Python without packages runs this file, also in the build of
an image: it imports nothing but the standard library.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = "requirements.lock"
PROJECT: Final = "pyproject.toml"
OWN: Final = "fngate"
ELSEWHERE: Final = frozenset({"tensorrt-cu13-libs"})
"""Distributions of extras that are not locked: their wheels are on NVIDIA's own index."""
_HEAD: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:==(\S+))?")
_EXTRAS: Final = re.compile(r"\[([^]]*)\]")
_PARENT: Final = re.compile(r"    # (?:via|  )(?: ?)([A-Za-z0-9._-]+)")


class NotLocked(Exception):
    """A requirement has no entry, or an entry no hash; the text says which, and the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A version of a distribution in the lock; a distribution has several if markers choose one."""

    name: str
    version: str
    text: str
    """Requirement, marker and hashes."""
    parents: frozenset[str]
    """Names of the distributions that need it; `fngate` for a requirement of `pyproject.toml`."""


def parse(lock: str) -> list[Entry]:
    """Return the entries of a lock, in its order. Raises NotLocked for one without a hash."""
    found = []
    for block in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        lines = block.splitlines()
        if not lines or not (head := _HEAD.match(lines[0])):
            continue
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        if "--hash=sha256:" not in text or not head[2]:
            raise NotLocked(f"{FILE}: expected a version and hashes, got {lines[0]!r}: make lock")
        parents = (_PARENT.match(line) for line in lines)
        found.append(
            Entry(
                *(normal(head[1]), head[2], text),
                frozenset(normal(one[1]) for one in parents if one),
            )
        )
    return found


def cut(entries: Sequence[Entry], names: Iterable[str]) -> list[Entry]:
    """Return the entries of some distributions and of all that they need.

    Raises NotLocked for a name without an entry.
    """
    wanted = {normal(name) for name in names}
    if missing := sorted(wanted - {entry.name for entry in entries}):
        raise NotLocked(f"{FILE} has no {', '.join(missing)}: make lock")
    while more := {e.name for e in entries if e.parents & wanted} - wanted:
        wanted |= more
    return [entry for entry in entries if entry.name in wanted]


def expand(requirements: Iterable[str], project: str) -> set[str]:
    """Return the names of the distributions of requirements, with those of `pyproject.toml` in
    place of `fngate` and its extras. Raises NotLocked for an unknown extra."""
    names: set[str] = set()
    for requirement in requirements:
        name = normal(_name(requirement))
        names |= _own(requirement, project) if name == OWN else {name}
    return names


def _own(requirement: str, project: str) -> set[str]:
    if not project:
        raise NotLocked(f"{OWN} itself needs its {PROJECT}: expected a checkout")
    document = tomllib.loads(project)
    names = set(document["build-system"]["requires"]) | set(document["project"]["dependencies"])
    known = document["project"]["optional-dependencies"]
    listed = _EXTRAS.search(requirement)
    for extra in filter(None, (listed[1] if listed else "").split(",")):
        if extra not in known:
            raise NotLocked(f"expected an extra of {', '.join(sorted(known))}, got {extra!r}")
        names |= set(known[extra])
    return expand(names, project) - ELSEWHERE


def _name(requirement: str) -> str:
    found = _HEAD.match(requirement)
    if found is None:
        raise NotLocked(f"expected a requirement like fngate[cpu], got {requirement!r}")
    return found[1]


def normal(name: str) -> str:
    """Return a distribution's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(requirements: Iterable[str], lock: str, project: str = "") -> str:
    """Return what to install for some requirements, from the texts of the lock and of
    `pyproject.toml`, which only `fngate` needs. Raises NotLocked."""
    found = cut(parse(lock), expand(requirements, project))
    return "".join(f"{entry.text}\n" for entry in found)


def main(requirements: Sequence[str]) -> None:
    """Print the cut; end with a message if there is none."""
    here = Path(__file__).resolve().parent
    folder = here if (here / FILE).is_file() else here.parent
    project = folder / PROJECT
    try:
        text = project.read_text("utf-8") if project.is_file() else ""
        sys.stdout.write(locked(requirements, (folder / FILE).read_text("utf-8"), text))
    except NotLocked as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
