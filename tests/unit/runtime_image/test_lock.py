"""Tests of cuts of the lock."""

from __future__ import annotations

import pytest

from runtime_image import lock
from runtime_image.lock import NotLocked, cut, expand, locked, parse

A, B = "a" * 64, "b" * 64
LOCK = f"""\
base-one==1.0 \\
    --hash=sha256:{A}
    # via
    #   fngate (pyproject.toml)
    #   top
build==2.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via fngate (pyproject.toml)
deep==3.0 ; python_full_version < '3.11.5' \\
    --hash=sha256:{A}
    # via base-one
deep==3.1 ; python_full_version >= '3.11.5' \\
    --hash=sha256:{B}
    # via base-one
top==4.0 \\
    --hash=sha256:{A}
    # via fngate (pyproject.toml)
"""
PROJECT = """
[build-system]
requires = ["build>=1"]
[project]
dependencies = ["Base_One"]
[project.optional-dependencies]
more = ["top[fast]>=4"]
all = ["fngate[more]"]
elsewhere = ["fngate[more]", "tensorrt-cu13-libs~=10.0"]
"""


def names(text: str) -> list[str]:
    """Return name and version of each entry of a cut."""
    return [f"{entry.name}=={entry.version}" for entry in parse(text)]


def test_a_cut_has_all_that_is_needed() -> None:
    """A cut has what a requirement needs, and what that needs, in each version that a marker may
    choose, with every hash and marker, and nothing else."""
    assert names(locked(["base.one"], LOCK)) == ["base-one==1.0", "deep==3.0", "deep==3.1"]
    assert names(locked(["build"], LOCK)) == ["build==2.0"]

    text = locked(["Base_One"], LOCK)

    assert text == "".join(
        line
        for line in LOCK.splitlines(keepends=True)[:14]
        if "#" not in line and "build" not in line
    ).replace(f"    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n", "")


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [
        ("fngate", {"base-one", "build"}),
        ("fngate[more]", {"base-one", "build", "top"}),
        ("FnGate[all]", {"base-one", "build", "top"}),
        ("fngate[elsewhere]", {"base-one", "build", "top"}),
        ("fngate[]", {"base-one", "build"}),
        ("top[x]>=2", {"top"}),
    ],
)
def test_an_extra_is_what_the_project_says(requirement: str, wanted: set[str]) -> None:
    """fngate stands for its dependencies, those of its extras and what builds it; packages of
    another index are left out."""
    assert {
        lock.normal(name.partition("[")[0].partition(">")[0])
        for name in expand([requirement], PROJECT)
    } == wanted


@pytest.mark.parametrize(
    ("requirement", "project", "text"),
    [
        ("fngate[nothing]", PROJECT, "expected an extra of all, elsewhere, more, got 'nothing'"),
        ("fngate", "", "expected a checkout"),
        ("other", PROJECT, "requirements.lock has no other: make lock"),
        ("[x]", PROJECT, r"expected a requirement like fngate\[cpu\], got '\[x\]'"),
    ],
)
def test_what_is_not_locked_is_refused(requirement: str, project: str, text: str) -> None:
    """Nothing is installed that the lock does not have: the error names it and the remedy."""
    with pytest.raises(NotLocked, match=text):
        locked([requirement], LOCK, project)


@pytest.mark.parametrize("line", ["top==4.0", f"top>=4 --hash=sha256:{A}", "top"])
def test_an_entry_needs_a_version_and_a_hash(line: str) -> None:
    """A lock with an entry that pip would not check is no lock."""
    with pytest.raises(NotLocked, match="expected a version and hashes, got 'top"):
        parse(f"{LOCK}{line}\n")


def test_cycles_end() -> None:
    """Distributions that need each other are cut together."""
    text = f"a==1 --hash=sha256:{A}\n    # via b\nb==1 --hash=sha256:{A}\n    # via a\n"

    assert [entry.name for entry in cut(parse(text), ["a"])] == ["a", "b"]


def test_the_command_cuts_its_own_lock(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the cut of its own tree's lock, and ends with a line if there is none."""
    lock.main(["fngate[cpu]", "pip"])

    found = {entry.name for entry in parse(capsys.readouterr().out)}
    assert {"aiohttp", "multidict", "onnxruntime", "pip", "setuptools"} <= found
    assert not found & {"pytest", "grpcio", "onnxruntime-gpu"}
    with pytest.raises(SystemExit, match=r"error: requirements.lock has no nothing: make lock"):
        lock.main(["nothing"])
