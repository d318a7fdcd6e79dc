"""Tests of requirements.lock against pyproject.toml: what is installed has a hash."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from admin.ui.build import NODE_PACKAGE
from runtime_image.lock import ELSEWHERE, FILE, Entry, locked, parse

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / FILE).read_text("utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
DOCUMENT = tomllib.loads(PROJECT)
EXTRAS = DOCUMENT["project"]["optional-dependencies"]
PYTHONS = ("3.11.2", "3.11.14", "3.12.12", "3.13.9", "3.14.0")
MACHINES = ("x86_64", "aarch64")
LINE = re.compile(
    r"[a-z0-9-]+==[a-zA-Z0-9.]+( ; [a-z_0-9 '.<>=!()A-Z]+)? \\|"
    r"    --hash=sha256:[0-9a-f]{64}( \\)?|"
    r"    # (via|via \S+|  \S+)( \(pyproject\.toml(:[a-z]+)?\))?"
)


def environment(python: str, machine: str) -> dict[str, str]:
    """Return the values of markers on one kind of machine."""
    return {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def chosen(entries: list[Entry], python: str, machine: str) -> dict[str, str]:
    """Return the version of each distribution that pip would install there; one at most."""
    found: dict[str, str] = {}
    for entry in entries:
        requirement = Requirement(entry.text.partition("\\")[0].strip())
        marker = requirement.marker
        if marker is None or marker.evaluate(environment(python, machine)):
            assert entry.name not in found, f"two versions of {entry.name} for Python {python}"
            found[entry.name] = entry.version
    return found


def wanted() -> list[tuple[str, Requirement]]:
    """Return each requirement of the project, with the place that has it."""
    groups = {
        "dependencies": DOCUMENT["project"]["dependencies"],
        "build-system": DOCUMENT["build-system"]["requires"],
        **EXTRAS,
        **DOCUMENT["dependency-groups"],
    }
    listed = chain.from_iterable(
        ((at, Requirement(one)) for one in of) for at, of in groups.items()
    )
    return [(at, one) for at, one in listed if one.name not in {"fngate", *ELSEWHERE}]


def test_a_lock_has_pins_and_hashes_only() -> None:
    """Every line is a pin, a hash, or who needs it: no address, no option, no path, no file."""
    odd = [line for line in LOCK.splitlines() if not LINE.fullmatch(line)]

    assert not odd
    assert "://" not in LOCK
    assert {entry.text.count("--hash=") > 0 for entry in parse(LOCK)} == {True}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_locked(python: str, machine: str) -> None:
    """Each requirement of pyproject.toml has one version that fulfils it, for each Python."""
    found = chosen(parse(LOCK), python, machine)

    stale = [
        f"{place}: {requirement}"
        for place, requirement in wanted()
        if (version := found.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]
    assert not stale, f"{FILE} is older than pyproject.toml: make lock"


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_the_cut_of_an_extra_is_closed(extra: str) -> None:
    """What an extra's cut has needs nothing beyond it: each entry that names one of the cut as its
    reason is there, and so is each requirement of the extra."""
    cut = {entry.name for entry in parse(locked([f"fngate[{extra}]"], LOCK, PROJECT))}

    missing = [entry.name for entry in parse(LOCK) if entry.parents & cut and entry.name not in cut]
    assert not missing
    direct = {canonicalize_name(one.name) for at, one in wanted() if at in ("dependencies", extra)}
    assert direct <= cut


def test_every_entry_has_a_reason() -> None:
    """Each entry is needed by an entry or by the project; so no cut can miss it."""
    entries = parse(LOCK)
    known = {entry.name for entry in entries} | {"fngate"}

    assert not [entry.name for entry in entries if not entry.parents]
    assert not [entry.name for entry in entries if not entry.parents <= known]


def test_node_is_the_locked_one() -> None:
    """The package that brings Node to a machine without it is the locked one."""
    name, _, version = NODE_PACKAGE.partition("==")

    assert [entry.version for entry in parse(LOCK) if entry.name == name] == [version]


def test_the_dashboards_lock_has_hashes_and_no_address() -> None:
    """npm checks every package of the dashboard, from whichever registry it comes."""
    packages = json.loads((ROOT / "admin/dashboard/package-lock.json").read_text())["packages"]

    without = [name for name, one in packages.items() if name and not one.get("integrity")]
    assert not without
    assert not [name for name, one in packages.items() if "resolved" in one]
