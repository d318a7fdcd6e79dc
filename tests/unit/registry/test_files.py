"""Tests of durable files and of the data directory's lock."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from registry.errors import Conflict, StoreUnavailable
from registry.files import (
    DataDirectory,
    fsync_folder,
    is_exhausted,
    unavailable,
    write_atomic,
)

ROOT = Path(__file__).parents[3]


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_written_file_has_content_and_mode(tmp_path: Path) -> None:
    """The file has the new content and is readable by its owner only; no other file remains."""
    path = tmp_path / "admin.token"

    write_atomic(path, b"one")
    write_atomic(path, b"two")

    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path] == list(tmp_path.iterdir())


def test_readers_keep_the_file_they_opened(tmp_path: Path) -> None:
    """An open file does not change when its name gets a new file."""
    path = tmp_path / "file"
    write_atomic(path, b"old", mode=0o644)

    with path.open("rb") as reader:
        write_atomic(path, b"new", mode=0o644)
        assert reader.read() == b"old"

    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """A failed write leaves the old file and no temporary one."""
    path = tmp_path / "taken"
    (path / "inside").mkdir(parents=True)

    with pytest.raises(StoreUnavailable, match="disk error"):
        write_atomic(path, b"data")

    assert [path] == list(tmp_path.iterdir())


def test_a_write_without_room_is_disk_full(tmp_path: Path) -> None:
    """A write that exceeds the size limit fails as "disk full" and leaves no file."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from registry.errors import StoreUnavailable\n"
        "from registry.files import write_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomic(Path(sys.argv[1]), bytes(5000))\n"
        "except StoreUnavailable as error: print(error)"
    )

    done = run(code, str(tmp_path / "file"))

    assert done.stdout.startswith("disk full: "), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "disk full: No space left on device (/data/x)"),
        (errno.EDQUOT, "disk full: Disk quota exceeded (/data/x)"),
        (errno.EACCES, "disk error: Permission denied (/data/x)"),
    ],
)
def test_reasons(number: int, text: str) -> None:
    """The message has the filesystem's reason and the file's name, and says "disk full" for lack of
    room."""
    assert text == str(unavailable(OSError(number, os.strerror(number), "/data/x")))


def test_a_reason_without_a_number() -> None:
    """The text of an error without errno is kept."""
    assert str(unavailable(OSError("odd"))) == "disk error: odd"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_recognised(number: int) -> None:
    """EMFILE and ENFILE are recognised in the error or in its cause."""
    outer = StoreUnavailable("cannot")
    outer.__cause__ = OSError(number, "Too many open files")

    assert is_exhausted(OSError(number, "x"))
    assert is_exhausted(outer)
    assert not is_exhausted(OSError(errno.ENOENT, "x"))
    assert not is_exhausted(None)


def test_fsync_folder(tmp_path: Path) -> None:
    """A folder can be synced; a missing one raises OSError."""
    fsync_folder(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        fsync_folder(tmp_path / "missing")


def test_the_data_directory_is_private(tmp_path: Path) -> None:
    """A new data directory has mode 0700, and its lock file contains the pid."""
    path = tmp_path / "deep" / "data"

    with DataDirectory.open(path) as data:
        assert path == data.path
        assert path.stat().st_mode & 0o777 == 0o700
        assert f"{os.getpid()}\n" == (path / "lock").read_text()


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    """An existing folder keeps its mode."""
    tmp_path.chmod(0o755)

    DataDirectory.open(tmp_path).close()

    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_the_second_server_is_refused(tmp_path: Path) -> None:
    """A second server gets a Conflict that names the pid of the first one."""
    with (
        DataDirectory.open(tmp_path),
        pytest.raises(Conflict, match=rf"pid {os.getpid()}\).*--data"),
    ):
        DataDirectory.open(tmp_path)

    DataDirectory.open(tmp_path).close()


def test_another_process_is_refused(tmp_path: Path) -> None:
    """The lock applies between processes and is not inherited by child processes."""
    code = (
        "import sys; from pathlib import Path\n"
        "from registry.errors import Conflict\n"
        "from registry.files import DataDirectory\n"
        "try: DataDirectory.open(Path(sys.argv[1]))\n"
        "except Conflict as error: print(error)"
    )

    with DataDirectory.open(tmp_path):
        done = run(code, str(tmp_path))

    assert f"(pid {os.getpid()})" in done.stdout, done.stderr


def test_a_lock_without_a_pid_is_a_conflict(tmp_path: Path) -> None:
    """A lock file that has no pid yet is refused as well."""
    with DataDirectory.open(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(Conflict, match="pid unknown"):
            DataDirectory.open(tmp_path)


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    """A second `close` has no effect, in particular not on a reused descriptor."""
    data = DataDirectory.open(tmp_path)
    data.close()
    with (tmp_path / "other").open("w") as other:
        data.close()
        other.write("still open")


def test_a_file_in_place_of_the_data_directory(tmp_path: Path) -> None:
    """A file at the directory's path is reported as a disk error."""
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(StoreUnavailable, match="disk error"):
        DataDirectory.open(path)
