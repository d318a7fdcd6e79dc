"""Folders of a model repository: which are models, and which versions of a model are deployed.

As in Triton a version is a folder whose name is a number without leading zeros; any other folder of
a model is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from admin.cli.repository.config import VersionPolicy
from admin.cli.repository.fields import Findings
from registry.errors import BadBundle
from registry.manifest import MANIFEST_FILE
from registry.names import OIP_VERSION_MAX

CONFIG_FILE: Final = "config.pbtxt"
ENTRIES_MAX: Final = 10_000
"""Max entries of a folder that are looked at."""
MODELS_MAX: Final = 1000
VERSIONS_MAX: Final = 10
"""Max versions that one run deploys of a model: a server keeps as many revisions."""
_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}")
_ZEROS: Final = re.compile(r"0[0-9]*")

Shape = Literal["", "model", "repository"]


def shape_of(path: Path) -> Shape:
    """Return whether a folder is one model, a repository of models, or neither: one with a
    function.toml is a function's."""
    if not path.is_dir() or (path / MANIFEST_FILE).is_file():
        return ""
    if is_model(path):
        return "model"
    return "repository" if any(is_model(one) for one in _folders(path)) else ""


def is_model(folder: Path) -> bool:
    """Return whether a folder has a config.pbtxt or a version."""
    return (folder / CONFIG_FILE).is_file() or bool(versions_of(folder))


def models_of(repository: Path) -> tuple[list[Path], list[str]]:
    """Return the models' folders by name, and the names of other folders. Raises BadBundle if there
    are too many."""
    found: list[Path] = []
    others: list[str] = []
    for folder in _folders(repository):
        if is_model(folder):
            found.append(folder)
        else:
            others.append(folder.name)
    if len(found) > MODELS_MAX:
        text = f"expected at most {MODELS_MAX} models in {repository}, got {len(found)}"
        raise BadBundle(text)
    return found, others


def versions_of(folder: Path) -> tuple[int, ...]:
    """Return the versions that a model's folder has, in order."""
    names = (one.name for one in _folders(folder))
    return tuple(sorted(int(n) for n in names if _is_version(n)))


def chosen_versions(folder: Path, policy: VersionPolicy, findings: Findings) -> tuple[int, ...]:
    """Return the versions that the policy names, in order. What is left out is a finding, and so is
    a name that looks like a version."""
    there = versions_of(folder)
    for name in (one.name for one in _folders(folder)):
        if _ZEROS.fullmatch(name):
            text = f"the folder {name!r} is no version: a version has no leading zeros"
            findings.ignore(0, "", text)
    if policy.kind == "specific":
        chosen = [one for one in there if one in policy.specific]
        for one in sorted(set(policy.specific) - set(there)):
            findings.refuse(policy.line, "version_policy.specific", f"there is no folder {one}")
    else:
        chosen = list(there if policy.kind == "all" else there[-policy.latest :])
    left_out = [one for one in there if one not in chosen]
    if left_out:
        own = "this policy" if policy.line else "the default policy, the latest version"
        text = f"not deployed by {own}: {_listed(left_out)}"
        findings.ignore(policy.line, "version_policy", text)
    if not there:
        findings.refuse(0, "", f"expected a folder such as 1 in {folder.name}, got none")
    if len(chosen) > VERSIONS_MAX:
        text = f"expected at most {VERSIONS_MAX} versions, got {len(chosen)}: {_listed(chosen)}"
        findings.refuse(policy.line, "version_policy", text)
    return tuple(chosen)


def _is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None and int(name) <= OIP_VERSION_MAX


def _listed(versions: Sequence[int]) -> str:
    shown = ", ".join(map(str, versions[:VERSIONS_MAX]))
    return shown if len(versions) <= VERSIONS_MAX else f"{shown} …"


def _folders(path: Path) -> Iterable[Path]:
    """Return the folders in a folder by name, without hidden ones. Raises BadBundle."""
    found = []
    try:
        with os.scandir(path) as entries:
            for count, entry in enumerate(entries):
                if count >= ENTRIES_MAX:
                    raise BadBundle(f"expected at most {ENTRIES_MAX} entries in {path}, got more")
                if not entry.name.startswith(".") and entry.is_dir():
                    found.append(path / entry.name)
    except OSError as error:
        raise BadBundle(f"{path} cannot be read: {error.strerror}") from error
    return sorted(found)
