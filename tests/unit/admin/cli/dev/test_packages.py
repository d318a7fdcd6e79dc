"""Locks and environments that runs of `fnctl dev` share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.cli.dev.folder import Folder
from admin.cli.dev.packages import UNUSED_S, Packages
from environments.folders import EnvironmentSettings
from environments.needs import read_needs
from environments.trees import remove_tree
from registry.errors import EnvironmentRefused
from tests.support.package_index import PackageIndex, package_index


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """An index with two packages."""
    with package_index() as served:
        served.add("tiny", "1.0")
        yield served


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A folder that is there already."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    yield folder
    remove_tree(folder)


def packages(cache: Path, index: PackageIndex) -> tuple[Packages, list[str]]:
    """Return what a run has, and the lines that it says."""
    said: list[str] = []
    settings = EnvironmentSettings(index.config(cache.parent))
    return Packages(cache, settings, (), said.append), said


def folder(tmp_path: Path, text: str = "tiny\n") -> Folder:
    """Return a folder with needs."""
    return Folder(tmp_path, read_needs({"requirements.txt": text.encode()}))


def test_a_second_run_asks_no_index(tmp_path: Path, cache: Path, index: PackageIndex) -> None:
    """It says that lock and environment are there; a third time it says nothing."""
    first = packages(cache, index)[0].prepare(folder(tmp_path))
    index.asked.clear()
    again, said = packages(cache, index)
    second = again.prepare(folder(tmp_path))

    assert second.environment.name == first.environment.name
    assert index.asked == []
    assert [line.split()[0] for line in said] == ["lock", "environment"]
    assert "2 packages, " in said[0]
    assert said[0].endswith("(requirements.txt), stored")
    again.prepare(folder(tmp_path))
    assert len(said) == 2
    assert cache.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("text", ["", "{", "other"])
def test_a_lock_that_is_none_is_made_anew(
    tmp_path: Path, cache: Path, index: PackageIndex, text: str
) -> None:
    """One that is damaged, and one of other needs."""
    packages(cache, index)[0].prepare(folder(tmp_path))
    (path,) = (cache / "locks").iterdir()
    if text == "other":
        text = path.read_text().replace(path.stem, "0" * 64)
    path.write_text(text)
    again, said = packages(cache, index)
    again.prepare(folder(tmp_path))

    assert ", made in " in "\n".join(said)
    assert path.stem in path.read_text()


def test_refusals_leave_nothing(tmp_path: Path, cache: Path, index: PackageIndex) -> None:
    """Neither a lock nor an environment."""
    with pytest.raises(EnvironmentRefused, match="no-such"):
        packages(cache, index)[0].prepare(folder(tmp_path, "no-such\n"))
    there, _ = packages(cache, index)
    with pytest.raises(EnvironmentRefused, match=r"expected Python 3\.99, this server has 3\."):
        there.prepare(Folder(tmp_path, read_needs({}), "3.99"))

    assert [*(cache / "locks").iterdir()] == []
    assert not [one for one in (cache / "environments").iterdir() if one.name[0] != "."]


def test_what_nothing_uses_is_removed(tmp_path: Path, cache: Path, index: PackageIndex) -> None:
    """After a month; what was used stays."""
    there, _ = packages(cache, index)
    old = there.prepare(folder(tmp_path)).environment
    (lock,) = (cache / "locks").iterdir()
    assert there.prepare(folder(tmp_path, "tiny>=1\n")).environment.name == old.name
    new = there.prepare(folder(tmp_path, "")).environment
    at = lock.stat().st_mtime - UNUSED_S - 60
    for path in (lock, old.folder):
        os.utime(path, (at, at))
    there.tidy()

    assert not lock.exists()
    assert not old.folder.exists()
    assert new.folder.exists()
    assert len([*(cache / "locks").iterdir()]) == 2
