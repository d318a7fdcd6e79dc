"""Whether files are in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool_manager import read_ahead
from pool_manager.read_ahead import PAGE_BYTES, cached_pages, is_resident, looks_resident

SIZE = 3 * 1024 * 1024 + 17
WAYS = [is_resident, looks_resident]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """A file that was just written and is on the disk, too."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(SIZE))
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    yield opened
    os.close(opened)


def evict(fd: int) -> None:
    """Have the kernel drop a file's pages; where it keeps them nothing can be tested."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(fd, 0, SIZE) != 0:
        pytest.skip("this file system keeps files in memory, or does not tell")


@pytest.mark.parametrize("way", WAYS)
def test_what_was_just_written_is_there(fd: int, way: type) -> None:
    """A file that was just written is resident, as a whole and in parts."""
    assert way(fd, 0, SIZE)
    assert way(fd, PAGE_BYTES - 1, 2)
    assert way(fd, SIZE - 1, 1)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_evicted_is_not(fd: int, way: type) -> None:
    """No part of an evicted file is resident."""
    evict(fd)

    assert not way(fd, 0, SIZE)


def test_a_missing_page_is_noticed(fd: int) -> None:
    """If the kernel counts pages, one missing page is detected."""
    evict(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for offset in range(PAGE_BYTES, SIZE, PAGE_BYTES):
        os.pread(fd, 1, offset)

    assert is_resident(fd, PAGE_BYTES, SIZE - PAGE_BYTES)
    assert not is_resident(fd, 0, SIZE)


def test_an_old_kernel_is_asked_otherwise(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cachestat system call the fallback is used."""
    monkeypatch.setattr(read_ahead, "CACHESTAT", 100_000)

    assert cached_pages(fd, 0, SIZE) is None
    assert is_resident(fd, 0, SIZE)


def test_what_is_no_file_is_an_error() -> None:
    """A bad descriptor raises OSError."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        is_resident(-1, 0, SIZE)


def test_a_file_system_that_cannot_tell_has_nothing_in_memory(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without support the file counts as not resident and is read; other errors
    are raised."""

    def refuse(code: int) -> None:
        def preadv(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(read_ahead.os, "preadv", preadv)

    refuse(errno.EOPNOTSUPP)
    assert not looks_resident(fd, 0, SIZE)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        looks_resident(fd, 0, SIZE)
