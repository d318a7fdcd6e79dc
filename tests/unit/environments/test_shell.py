"""Tests of shells: a run folder that is a virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from environments.entry_points import console_scripts
from environments.folders import Environment, Environments
from environments.interpreters import Interpreter
from environments.needs import REQUIREMENTS, read_needs
from environments.programs import Work
from environments.shell import write_shell
from registry.errors import EnvironmentRefused
from tests.support.package_index import PackageIndex

CHILDREN = """
import json, multiprocessing, subprocess, sys
import small
def where(_): import small; return small.__file__
if __name__ == "__main__":
    code = "import small, sys; print(small.__file__)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.map(where, [0])
    found = [small.__file__, child.stdout.strip(), *spawned, sys.prefix, small.__cached__]
    print(json.dumps(found))
"""


@pytest.fixture
def built(environments: Environments, index: PackageIndex, interpreter: Interpreter) -> Environment:
    """An environment of packages with programs of three kinds."""
    code = b"import sys\nV = 1\ndef main(): print('small', *sys.argv[1:]); return 3\n"
    data = "small-1.0.data/scripts"
    index.add(
        "small",
        files={
            "small.py": code,
            f"{data}/plain": b"#!/bin/sh\necho plain $1\n",
            f"{data}/other": b"#!python\nimport small\nprint('other', small.V)\n",
        },
        scripts={"hello": "small:main"},
    )
    lock = environments.resolve(read_needs({REQUIREMENTS: b"small"}), interpreter, Work())
    return environments.ensure(lock, interpreter, Work())


def test_children_find_the_packages(
    built: Environment, interpreter: Interpreter, tmp_path: Path
) -> None:
    """By `sys.executable`, and in spawn pools; with the bytecode of the environment."""
    (tmp_path / "run.py").write_text(CHILDREN)

    python = write_shell(tmp_path / "shell", interpreter, built)

    done = subprocess.run([python, "-I", "run.py"], cwd=tmp_path, capture_output=True, check=True)
    *files, prefix, cached = json.loads(done.stdout)
    assert len(set(files)) == 1
    assert files[0].startswith(f"{tmp_path}/shell/lib/")
    assert prefix == str(tmp_path / "shell")
    assert Path(cached).is_file()


def test_programs_run_with_the_packages(
    built: Environment, interpreter: Interpreter, tmp_path: Path
) -> None:
    """Console scripts, programs, and scripts of Python, in a folder of any name."""
    shell = tmp_path / "a shell's folder"
    write_shell(shell, interpreter, built)

    def call(name: str, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([shell / "bin" / name, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout

    assert sorted(os.listdir(shell / "bin")) == sorted(
        {"hello", "other", "plain", "python", "python3", f"python{built.lock.python}"}
    )
    assert call("hello", "a b") == (3, "small a b\n")
    assert call("plain", "x") == (0, "plain x\n")
    assert call("other") == (0, "other 1\n")
    assert call("python3", "-c", "import small; print(small.V)") == (0, "1\n")


def test_a_shell_may_be_seen_elsewhere(
    built: Environment, interpreter: Interpreter, tmp_path: Path
) -> None:
    """In a container the packages may have another path."""
    write_shell(tmp_path / "shell", interpreter, built, packages=Path("/packages"))

    library = tmp_path / "shell" / "lib" / f"python{built.lock.python}"
    assert (library / "site-packages").readlink() == Path("/packages")
    assert (tmp_path / "shell" / "bin" / "plain").readlink() == Path("/packages/bin/plain")


def test_another_version_is_refused(
    built: Environment, interpreter: Interpreter, tmp_path: Path
) -> None:
    """Its bytecode and its extensions would fail at the first import."""
    with pytest.raises(EnvironmentRefused, match=r"got 3\.99\.0"):
        write_shell(tmp_path / "shell", replace(interpreter, version=(3, 99, 0)), built)
    assert not (tmp_path / "shell").exists()


def test_another_patch_version_fits(
    built: Environment, interpreter: Interpreter, tmp_path: Path
) -> None:
    """Packages are of a minor version."""
    major, minor, _ = interpreter.version

    write_shell(tmp_path / "shell", replace(interpreter, version=(major, minor, 99)), built)

    assert f"version = {major}.{minor}.99" in (tmp_path / "shell" / "pyvenv.cfg").read_text()


@pytest.mark.parametrize(
    "line",
    ["x", "x =", "x = a", "x = a:b; evil", "x = a b:c", "../x = a:b", "-x = a:b", "x = a:b()",
     "=a:b", "x = a:", "x\0y = a:b", "python3 = a:b", "x = a.:b"],
)  # fmt: skip
def test_strange_entry_points_are_left_out(tmp_path: Path, line: str) -> None:
    """A name is a file's, a target is names of Python."""
    info = tmp_path / "x-1.dist-info"
    info.mkdir()
    text = f"[other]\nno = a:b\n[console_scripts]\n{line}\ngood = a.b : c.d [extra]\n"
    (info / "entry_points.txt").write_text(text)

    found = console_scripts(tmp_path, ["x-1.dist-info/entry_points.txt"])

    assert found.pop("good") == "a.b:c.d"
    assert set(found.values()) <= {"a:b"}
    assert not [name for name in found if name != "x"]
