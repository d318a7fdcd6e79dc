"""Changes of files, as `fnctl dev` sees them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from admin.cli import ignoring
from admin.cli.dev.watching import SETTLED, Watch, shown
from registry.errors import BadBundle


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two files."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "handler.py").write_text("a")
    (tmp_path / "inner" / "data").write_text("b")
    return tmp_path


def settled(watch: Watch) -> list[str]:
    """Return what has changed, by two looks."""
    return watch.changes() or watch.changes()


def test_writing_adding_and_removing_are_changes(root: Path) -> None:
    """Each is seen once; of equal size and time, a replaced file is, too."""
    watch = Watch(root)
    assert settled(watch) == []

    (root / "handler.py").write_text("longer")
    (root / "inner" / "data").unlink()
    (root / "new").write_text("")
    assert settled(watch) == ["handler.py", "inner/data", "new"]

    watch.begin()
    assert settled(watch) == []
    before = (root / "new").stat()
    (root / "other").write_text("")
    os.utime(root / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "other").replace(root / "new")
    assert settled(watch) == ["new"]


def test_ignored_files_do_not_count(root: Path) -> None:
    """Hidden ones, bytecode, and what .fnignore names."""
    (root / ".fnignore").write_text("*.log\n")
    watch = Watch(root)
    (root / "a.log").write_text("")
    (root / ".hidden").write_text("")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "handler.pyc").write_text("")

    assert settled(watch) == []


def test_files_that_still_change_are_waited_for(root: Path) -> None:
    """But not for ever."""
    watch = Watch(root)
    found = []
    for number in range(1, SETTLED + 2):
        (root / "handler.py").write_text("x" * (number + 1))
        found.append(watch.changes())

    assert found == [[]] * SETTLED + [["handler.py"]]


def test_the_number_of_files_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start it is an error; later the files of before count until there are fewer."""
    watch = Watch(root)
    monkeypatch.setattr(ignoring, "SCANNED_MAX", 2)
    with pytest.raises(BadBundle, match="expected at most 2 files"):
        Watch(root)
    watch.begin()
    assert settled(watch) == []

    (root / "handler.py").unlink()
    assert settled(watch) == ["handler.py"]


def test_long_lists_are_shortened() -> None:
    """They are told in a line."""
    assert shown(["a"]) == "a"
    assert shown([*"abcde"]) == "a, b, c and 2 more"
