from __future__ import annotations

import sys
from pathlib import Path

import pytest

from admin.cli.doctor import machine


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 14), "ok")]
)
def test_python_must_be_new_enough(version: tuple[int, int], level: str) -> None:
    """Python below 3.11 fails."""
    assert machine.python(version).level == level


def test_a_folder_that_can_be_made_is_fine(tmp_path: Path) -> None:
    """A data folder that is there, or whose parent is, is fine."""
    assert machine.folder(tmp_path).level == "ok"
    assert "makes it" in machine.folder(tmp_path / "a" / "b").found


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A file in the folder's place fails."""
    (tmp_path / "a").touch()

    assert machine.folder(tmp_path / "a").level == "fail"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "fail"), (machine.DISK_FULL, "warn"), (machine.DISK_LOW, "ok")]
)
def test_a_full_disk_is_told(tmp_path: Path, free: int, level: str) -> None:
    """Little room warns, hardly any fails."""
    assert machine.disk(tmp_path / "new", free).level == level


def test_the_disk_is_looked_at(tmp_path: Path) -> None:
    """Without a number the real disk is asked."""
    assert machine.disk(tmp_path).found.endswith("left")


@pytest.mark.parametrize(
    ("text", "mode", "level"), [("t", 0o600, "ok"), ("t", 0o644, "fail"), ("", 0o600, "fail")]
)
def test_a_token_is_private(tmp_path: Path, text: str, mode: int, level: str) -> None:
    """A token that others can read, or an empty one, fails."""
    path = tmp_path / "admin.token"
    path.write_text(text)
    path.chmod(mode)

    assert machine.token(tmp_path).level == level


def test_no_token_is_a_warning(tmp_path: Path) -> None:
    """Before the first start there is no token, which is no error."""
    assert machine.token(tmp_path).level == "warn"
    assert machine.token(tmp_path / "x" / "y").level == "warn"


def test_a_token_behind_a_file_fails(tmp_path: Path) -> None:
    """What cannot be looked at is told with the system's reason."""
    (tmp_path / "a").touch()

    assert machine.token(tmp_path / "a").level == "fail"


@pytest.mark.parametrize(("length", "level"), [(88, "ok"), (89, "fail")])
def test_a_socket_path_has_107_bytes(length: int, level: str) -> None:
    """The folder leaves room for a replica's socket within the kernel's limit."""
    assert machine.sockets(Path("/" + "x" * (length - 1))).level == level


def test_the_engine_is_tried_in_its_own_process(tmp_path: Path) -> None:
    """An interpreter without the library, or none at all, fails with what to install."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'No module named onnxruntime' >&2\nexit 1\n")
    broken.chmod(0o700)

    found = machine.engine(str(broken))

    assert (found.level, found.found) == ("fail", "No module named onnxruntime")
    assert machine.engine("/nonexistent").level == "fail"


@pytest.mark.slow
def test_the_engine_of_this_interpreter_works() -> None:
    """The library of this very environment is found with its providers."""
    found = machine.engine(sys.executable)

    assert found.level == "ok"
    assert "CPUExecutionProvider" in found.found
