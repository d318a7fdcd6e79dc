"""Tests of the distribution of test files to workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.groups import pytest_collection_modifyitems

MAKEFILE = Path(__file__).parents[3] / "Makefile"
RECORDS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(10))
def test_one(number):
    with pathlib.Path(__file__).with_suffix(".workers").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


class Item:
    """Test item with the attributes that the ordering needs."""

    def __init__(self, nodeid: str, mark: str = "") -> None:
        self.nodeid = nodeid
        self._mark = mark

    def get_closest_marker(self, name: str) -> bool:
        return name == self._mark


def collected() -> list[Any]:
    return [
        Item("a.py::one"),
        Item("b.py::two"),
        Item("b.py::three[x::y]", "docker"),
        Item("c.py::four", "slow"),
        Item("c.py::five", "slow"),
        Item("d.py::six"),
    ]


def config(**options: object) -> Any:
    """Return a pytest configuration; with `workerinput` it is a worker's."""
    return SimpleNamespace(**options)


def test_a_worker_takes_files_with_many_slow_tests_first() -> None:
    """Within a file, and among equal files, the order stays."""
    items = collected()

    pytest_collection_modifyitems(config(workerinput={}), items)

    names = [item.nodeid.rpartition("::")[2] for item in items]
    assert [item.nodeid[0] for item in items] == ["c", "c", "b", "b", "a", "d"]
    assert names[:2] == ["four", "five"]


def test_a_serial_run_keeps_its_order() -> None:
    """Without workers the order does not change."""
    items = collected()

    pytest_collection_modifyitems(config(), items)

    assert [item.nodeid for item in items] == [item.nodeid for item in collected()]


def test_with_the_options_of_make_a_file_stays_in_one_worker(tmp_path: Path) -> None:
    """With the options of `make test` each file runs in one worker."""
    [options] = re.findall(r"^PYTEST := -m pytest -n \S+ (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text(RECORDS)

    subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", *options.split(), "--rootdir", ".", "."],
        cwd=tmp_path,
        check=True,
        stdout=subprocess.DEVNULL,
    )

    used = [set(file.read_text().split()) for file in tmp_path.glob("*.workers")]
    assert len(used) == 3
    assert all(len(workers) == 1 for workers in used)
    assert len(set.union(*used)) == 2
