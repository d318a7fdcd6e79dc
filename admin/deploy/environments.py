"""Environments as an operator sees them: on disk, being built, or missing, with what names them.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from environments.folders import Environment
from environments.lock import Lock
from registry.errors import Conflict, Unknown

State = Literal["ready", "building", "missing"]
SHORT: Final = 12
"""Hex digits of a name that is shown."""
LEAST: Final = 4
"""Fewest characters by which an environment is named."""


@dataclass(slots=True)
class Naming:
    """What names an environment."""

    lock: str = ""
    """Digest of the lock that it is made from."""
    revisions: list[str] = field(default_factory=list)
    """`NAME@REVISION` of each stored revision."""
    live: list[str] = field(default_factory=list)
    """Those with the traffic or with a replica; functions whose deploy runs, without a number."""


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """One environment with what names it."""

    name: str
    state: State
    lock: Lock
    naming: Naming
    found: Environment | None
    """The folder, None if it is not there."""


def views(
    found: Iterable[Environment],
    locks: Mapping[str, Lock],
    named: Mapping[str, Naming],
    building: str,
) -> list[EnvironmentView]:
    """Return all environments, missing ones last; `named` is by name, `locks` are those of what is
    not found, by name. `building` is the name of the one that is being built, "" for none."""
    there = {one.name: one for one in found}
    result = []
    for name, one in there.items():
        result.append(EnvironmentView(name, "ready", one.lock, named.get(name, Naming()), one))
    for name in sorted(locks.keys() - there.keys()):
        state: State = "building" if name == building else "missing"
        naming = named.get(name, Naming())
        result.append(EnvironmentView(name, state, locks[name], naming, None))
    return result


def match(names: Collection[str], text: str) -> str:
    """Return the name that a text means: it, or the first digits of its digest, with `.FUNCTION`
    for the copy of a function. Raises Unknown, Conflict for several."""
    if text in names:
        return text
    digest, dot, owner = text.partition(".")
    found = [
        one
        for one in sorted(names)
        if len(digest) >= LEAST
        and one.startswith(digest)
        and (not dot or one.partition(".")[2] == owner)
    ]
    if not found:
        raise Unknown(f"no environment {text[:80]!r}; fnctl env ls has their names")
    if len(found) > 1:
        several = ", ".join(map(short, found[:5]))
        raise Conflict(f"{text[:80]!r} is the beginning of several environments: {several}")
    return found[0]


def short(name: str) -> str:
    """Return a name as it is shown: the first digits, and the function of a copy."""
    digest, dot, owner = name.partition(".")
    return f"{digest[:SHORT]}{dot}{owner}"


def check_removal(name: str, naming: Naming) -> None:
    """Raise Conflict for an environment that something live names."""
    if not naming.live:
        return
    functions = list(dict.fromkeys(one.partition("@")[0] for one in naming.live))
    raise Conflict(
        f"environment {short(name)} is needed by {', '.join(naming.live)}; fnctl rm {functions[0]}"
        f" frees it, or a deploy of {functions[0]} with other packages",
        detail={"functions": functions},
    )
