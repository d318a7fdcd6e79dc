"""Tests of the run folders of Python functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pool_manager.ports import Binding, PythonRun
from pool_manager.replicas.python_runs import PythonRuns
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from registry.manifest.python import COMMAND
from registry.model import Bundle
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
    )


def test_a_start_has_paths_of_its_own_run_folder(tmp_path: Path) -> None:
    """Program, code and settings are below the folder that the server sees; where it listens stays
    to be filled in. Every server has the environments read-only."""
    runs, run_dir = PythonRuns(settings(tmp_path)), Path("/r/a1")
    binding = Binding(SPEC, Bundle("", ()), "default", "f", 1, python=PythonRun("0" * 64, {}))
    found = runs.spec(SPEC, binding, run_dir)
    shell = "/r/a1/server/python"
    assert found.command == (
        *(f"{shell}/bin/python", "-I", "-u", f"{shell}/runner/python_runner"),
        *(f"{shell}/settings.json", "${SOCKET}"),
    )
    assert found.env == {"A": "1", "PATH": f"{shell}/bin:/usr/bin"}
    assert found.read_only == (str(tmp_path / "environments"),)
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
    with pytest.raises(DriverError, match=r"packages of f are not there: fnctl warm f installs"):
        runs.prepare(binding, RECORD, tmp_path)
    runs.prepare(replace(binding, python=None), RECORD, tmp_path)
    assert not (tmp_path / "server").exists()
