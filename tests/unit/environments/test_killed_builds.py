"""Tests of builds whose process is killed: nothing half-made is ever found."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.folders import BUILD, Environments
from environments.interpreters import Interpreter
from environments.lock import Lock
from environments.needs import REQUIREMENTS, read_needs
from environments.programs import Work
from environments.records import check_records
from environments.trees import remove_tree
from tests.support.doses import amount
from tests.support.package_index import PackageIndex

ROOT = Path(__file__).parents[3]
MOMENTS = 20
STEPS = 38
"""Steps that a build says at least."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def start(environments: Environments, config: Path, lock: Lock) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.environment_build"]
    child = subprocess.Popen(
        [*command, str(environments.root), str(config)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write(lock.text)
    child.stdin.close()
    child.stdin = None
    return child


def add_packages(index: PackageIndex) -> None:
    for name in ("one", "two", "three"):
        code = b"x = [%s]\n" % b",".join(b"%d" % n for n in range(300))
        index.add(name, files={f"{name}/m{n}.py": code for n in range(80)})


def check_build(folder: Path, lock: Lock) -> None:
    """Every file is as its RECORD says, and has its bytecode."""
    compiled = list(folder.rglob("*.pyc"))
    assert len(compiled) == len(list(folder.rglob("*.py"))) == 241
    for path in compiled:
        path.parent.chmod(0o700)
        path.unlink()
    for path in folder.rglob("__pycache__"):
        path.parent.chmod(0o700)
        path.rmdir()
    check_records(folder, lock, Work())


def test_a_killed_build_leaves_nothing_under_its_name(
    make: Callable[..., Environments],
    index: PackageIndex,
    interpreter: Interpreter,
    tmp_path: Path,
) -> None:
    """At each moment the next build is right, and what is left is removed by it."""
    add_packages(index)
    environments = make()
    needs = read_needs({REQUIREMENTS: b"one\ntwo\nthree\n"})
    lock = environments.resolve(needs, interpreter, Work())
    seen: set[str] = set()
    moments = range(0, MOMENTS, amount(5, 1))
    for moment in moments:
        if moment % 2:
            # Every other build has to load its files.
            remove_tree(environments.root / ".cache")
        child = start(environments, index.config(tmp_path), lock)
        assert child.stdout is not None
        for _ in range(1 + moment * STEPS // MOMENTS):
            seen.add(child.stdout.readline().partition(" ")[0])
        # On a busy machine an earlier phase has more lines; the last moment is in this one.
        while moment == moments[-1] and "compile" not in seen:
            line = child.stdout.readline()
            assert line, "the build ended without this phase"
            seen.add(line.partition(" ")[0])
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()

        found = environments.find(lock)
        if found is None:
            # uv holds the lock of builds until it has ended, too: this waits for it.
            found = environments.ensure(lock, interpreter, Work())
        check_build(found.packages, lock)
        environments.remove(found.name)
        environments.clean()
        assert not list(environments.root.glob(f"{BUILD}*"))
    assert seen >= {"load", "check", "compile"}


def test_a_killed_build_ends_its_programs(
    make: Callable[..., Environments],
    index: PackageIndex,
    interpreter: Interpreter,
    tmp_path: Path,
) -> None:
    """uv waits for an index that never answers; it goes with the process that started it."""
    environments = make()
    lock = environments.resolve(read_needs({}), interpreter, Work())
    remove_tree(environments.root / ".cache")
    asked, quiet = threading.Event(), threading.Event()

    def before(_: str) -> None:
        asked.set()
        quiet.wait()

    index.before = before
    child = start(environments, index.config(tmp_path), lock)
    asked.wait()
    (uv,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    uv_end = os.pidfd_open(int(uv))
    assert "uv" in Path(f"/proc/{uv}/comm").read_text()

    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert _ends(uv_end)
    quiet.set()
    assert child.stdout is not None
    child.stdout.close()
    environments.clean()
    assert not list(environments.root.glob(f"{BUILD}*"))


def _ends(pidfd: int) -> bool:
    try:
        return bool(select.select([pidfd], [], [], 30)[0])
    finally:
        os.close(pidfd)


def test_two_processes_build_once(
    make: Callable[..., Environments],
    index: PackageIndex,
    interpreter: Interpreter,
    tmp_path: Path,
) -> None:
    """Both say the same environment, and each file was loaded once."""
    add_packages(index)
    environments = make()
    needs = read_needs({REQUIREMENTS: b"one\ntwo\nthree\n"})
    lock = environments.resolve(needs, interpreter, Work())
    remove_tree(environments.root / ".cache")
    index.asked.clear()

    children = [start(environments, index.config(tmp_path), lock) for _ in range(2)]
    said = [child.communicate()[0] for child in children]

    assert [text.splitlines()[-1] for text in said] == [f"built {lock.digest}"] * 2
    wheels = [path for path in index.asked if path.endswith(".whl")]
    assert len(wheels) == len(set(wheels)) == 4
