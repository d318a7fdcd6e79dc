"""Tests of the run folders of Python functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from environments.interpreters import find_interpreters
from environments.runner import copy_runner, runner_digest
from pool_manager.ports import Binding, PythonRun
from pool_manager.replicas.python_runs import PythonRuns
from pool_manager.settings import PoolSettings
from registry.errors import StartRefused
from registry.manifest.python import COMMAND
from registry.model.bundles import Bundle
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import ServerSpec

SPEC = ServerSpec("f@1", COMMAND, {"A": "1"})
RECORD = cast(ReplicaRecord, None)


def settings(folder: Path) -> PoolSettings:
    """Return settings of a manager below a folder."""
    return PoolSettings(
        folder / "r",
        folder / "m",
        folder / "l",
        server_path="/usr/bin",
        environments=folder / "environments",
        shared=(folder / "environments", folder / "blobs"),
    )


def test_a_start_has_paths_of_its_own_run_folder(tmp_path: Path) -> None:
    """Program, code and settings are below the folder that the server sees; where it listens stays
    to be filled in. Every server has what functions share read-only."""
    runs, run_dir = PythonRuns(settings(tmp_path)), Path("/r/a1")
    binding = Binding(SPEC, Bundle("", ()), "default", "f", 1, python=PythonRun("0" * 64, {}))
    found = runs.spec(SPEC, binding, run_dir)
    shell = "/r/a1/server/python"
    assert found.command == (
        *(f"{shell}/bin/python", "-I", "-u", f"{shell}/runner/python_runner"),
        *(f"{shell}/settings.json", "${SOCKET}"),
    )
    assert found.env == {"A": "1", "PATH": f"{shell}/bin:/usr/bin"}
    assert found.read_only == (str(tmp_path / "environments"), str(tmp_path / "blobs"))
    command = replace(binding, python=PythonRun("0" * 64, None))
    assert runs.spec(SPEC, command, run_dir) == replace(found, command=COMMAND)
    plain = runs.spec(replace(SPEC, command=("x",)), replace(binding, python=None), run_dir)
    assert plain == replace(SPEC, command=("x",), read_only=found.read_only)
    apart = replace(SPEC, is_apart=True)
    assert runs.spec(apart, binding, run_dir) == apart


def test_a_start_without_its_packages_says_what_installs_them(tmp_path: Path) -> None:
    """It builds nothing: a call must not wait for an index."""
    runs = PythonRuns(settings(tmp_path))
    binding = Binding(SPEC, Bundle("", ()), "default", "f", 1, python=PythonRun("0" * 64, {}))
    with pytest.raises(StartRefused, match=r"packages of f are not there: fnctl warm f installs"):
        runs.prepare(binding, RECORD, tmp_path)
    runs.prepare(replace(binding, python=None), RECORD, tmp_path)
    assert not (tmp_path / "server").exists()


def test_old_copies_of_the_runner_go_once_no_replica_has_them(tmp_path: Path) -> None:
    """Today's stays, and so does one that a replica of an earlier server runs; what a killed start
    has left goes, too. Nothing else is touched."""
    root = tmp_path / "environments"
    runs = PythonRuns(settings(tmp_path))
    runs.remove_old()
    names = [f".runner-{runner_digest()}-3.11", ".runner-0123-3.11", ".runner-4567-3.11"]
    left = [root / name for name in (*names, ".runner-.0123", "0" * 64, ".cache")]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    copy_runner(left[0], find_interpreters().found[0])
    code = tmp_path / "r/a1/server/python/runner"
    code.parent.mkdir(parents=True)
    code.symlink_to(root / names[1])

    runs.remove_old()
    assert sorted(root.iterdir()) == sorted([*left[:2], *left[4:]])
    code.unlink()
    runs.remove_old()
    assert sorted(root.iterdir()) == sorted([left[0], *left[4:]])
    assert (left[0] / "python_runner/__main__.py").is_file()
