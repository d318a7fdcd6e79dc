"""Durable files and the data directory's lock."""

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
    """The file is there with its bytes, for its owner only, and nothing else is."""
    path = tmp_path / "admin.token"

    write_atomic(path, b"one")
    write_atomic(path, b"two")

    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path] == list(tmp_path.iterdir())


def test_readers_keep_what_they_opened(tmp_path: Path) -> None:
    """A file open for reading is not changed by a new one under its name."""
    path = tmp_path / "file"
    write_atomic(path, b"old", mode=0o644)

    with path.open("rb") as reader:
        write_atomic(path, b"new", mode=0o644)
        assert reader.read() == b"old"

    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Where the new file cannot take its place, the old one stays and no other remains."""
    path = tmp_path / "taken"
    (path / "inside").mkdir(parents=True)

    with pytest.raises(StoreUnavailable, match="disk error"):
        write_atomic(path, b"data")

    assert [path] == list(tmp_path.iterdir())


def test_no_room_is_said_so(tmp_path: Path) -> None:
    """A write that the system cuts short for its size is "disk full", and leaves nothing."""
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
    """The filesystem's reason and the file's name are told, and what is out of room."""
    assert text == str(unavailable(OSError(number, os.strerror(number), "/data/x")))


def test_a_reason_without_a_number() -> None:
    """An error that carries only a text keeps it."""
    assert str(unavailable(OSError("odd"))) == "disk error: odd"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_known(number: int) -> None:
    """By the error or by what it was raised from; nothing else is one."""
    outer = StoreUnavailable("cannot")
    outer.__cause__ = OSError(number, "Too many open files")

    assert is_exhausted(OSError(number, "x"))
    assert is_exhausted(outer)
    assert not is_exhausted(OSError(errno.ENOENT, "x"))
    assert not is_exhausted(None)


def test_fsync_folder(tmp_path: Path) -> None:
    """A folder can be made durable; what is none raises."""
    fsync_folder(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        fsync_folder(tmp_path / "missing")


def test_the_data_directory_is_private(tmp_path: Path) -> None:
    """A new data directory is for its owner only, and its lock file holds the pid."""
    path = tmp_path / "deep" / "data"

    with DataDirectory.open(path) as data:
        assert path == data.path
        assert path.stat().st_mode & 0o777 == 0o700
        assert f"{os.getpid()}\n" == (path / "lock").read_text()


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    """A folder somebody made keeps the mode they gave it."""
    tmp_path.chmod(0o755)

    DataDirectory.open(tmp_path).close()

    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_the_second_server_is_refused(tmp_path: Path) -> None:
    """While one server holds the directory another gets a Conflict naming its pid."""
    with (
        DataDirectory.open(tmp_path),
        pytest.raises(Conflict, match=rf"pid {os.getpid()}\).*--data"),
    ):
        DataDirectory.open(tmp_path)

    DataDirectory.open(tmp_path).close()


def test_another_process_is_refused(tmp_path: Path) -> None:
    """The lock holds between processes, and is inherited by none that is started."""
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


def test_a_holder_that_has_not_said_who_it_is(tmp_path: Path) -> None:
    """A lock without a pid yet is refused all the same."""
    with DataDirectory.open(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(Conflict, match="pid unknown"):
            DataDirectory.open(tmp_path)


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    """A second close does nothing, least of all to somebody else's descriptor."""
    data = DataDirectory.open(tmp_path)
    data.close()
    with (tmp_path / "other").open("w") as other:
        data.close()
        other.write("still open")


def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    """A file where the directory should be is told as it is."""
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(StoreUnavailable, match="disk error"):
        DataDirectory.open(path)
