from __future__ import annotations

import os
from pathlib import Path

import pytest

from pool_manager.replicas import logs
from pool_manager.replicas.logs import BLOCK, DROPPED, LogChunk

LINE = b"0123456789abcde\n"
LIMIT = 16 * BLOCK
KEEP = 4 * BLOCK


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def no_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows none."""
    monkeypatch.setattr(logs, "_punched", lambda *_: False)


def write(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_log_is_read_from_a_place(log: Path) -> None:
    """At most `size` bytes are read; beyond the end there are none."""
    write(log, b"abcdef")

    assert logs.read_log(log, 2, 3) == LogChunk(2, b"cde")
    assert logs.read_log(log, 6, 3) == LogChunk(6, b"")


def test_a_small_log_stays(log: Path) -> None:
    """Up to its limit every byte is kept."""
    write(log, LINE * (LIMIT // len(LINE)))

    assert not logs.bound_log(log, LIMIT, KEEP)
    assert logs.read_kept(log, LIMIT) == LINE * (LIMIT // len(LINE))


def test_a_grown_log_gives_its_blocks_back(log: Path) -> None:
    """A punched log keeps its offsets and loses no concurrent writes."""
    with log.open("ab", buffering=0) as writer:
        writer.write(LINE * 100_000)
        assert logs.bound_log(log, LIMIT, KEEP)
        writer.write(b"the last word\n")

    size = 100_000 * len(LINE)
    assert logs.disk_bytes(log) <= KEEP + 2 * BLOCK
    assert logs.read_log(log, size, 100) == LogChunk(size, b"the last word\n")
    piece = logs.read_log(log, 0, len(LINE))
    assert size - KEEP - BLOCK < piece.start <= size - KEEP
    assert not logs.bound_log(log, LIMIT, KEEP)
    assert logs.read_kept(log, LIMIT).startswith(DROPPED + LINE)
    assert logs.read_kept(log, LIMIT).endswith(LINE + b"the last word\n")


@pytest.mark.usefixtures("no_holes")
def test_a_log_without_holes_begins_anew(log: Path) -> None:
    """A log without hole support is rewritten; its writer appends after the kept part and followers
    continue at its end."""
    with log.open("ab", buffering=0) as writer:
        writer.write(LINE * 100_000)
        assert logs.bound_log(log, LIMIT, KEEP)
        size = log.stat().st_size
        piece = logs.read_log(log, 100_000 * len(LINE), 100)
        writer.write(b"the last word\n")

    assert size <= KEEP + len(DROPPED)
    assert piece == LogChunk(size, b"")
    assert log.read_bytes().startswith(DROPPED + LINE)
    assert log.read_bytes().endswith(LINE + b"the last word\n")


@pytest.mark.parametrize("has_holes", [True, False])
def test_a_log_that_is_cut_is_as_old_as_before(
    log: Path, monkeypatch: pytest.MonkeyPatch, has_holes: bool
) -> None:
    """A cut log keeps its modification time, from which `Spool` continues."""
    write(log, LINE * (LIMIT // len(LINE) + 1))
    os.utime(log, ns=(1, 1_000_000_007))
    if not has_holes:
        monkeypatch.setattr(logs, "_punched", lambda *_: False)

    assert logs.bound_log(log, LIMIT, KEEP)
    assert log.stat().st_mtime_ns == 1_000_000_007


def test_a_log_has_an_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log above SIZE_MAX is rewritten although holes are supported."""
    monkeypatch.setattr(logs, "SIZE_MAX", LIMIT)
    write(log, LINE * 100_000)

    logs.bound_log(log, LIMIT, KEEP)

    assert log.stat().st_size <= KEEP + len(DROPPED)


def test_a_disk_that_fails_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors other than missing hole support are raised."""
    descriptor = os.open(log, os.O_RDONLY)

    with pytest.raises(OSError, match="Bad file descriptor"):
        logs._punched(descriptor, BLOCK)

    os.close(descriptor)


@pytest.mark.parametrize(
    ("count", "place"), [(1, 8), (2, 4), (3, 0), (9, 0)], ids=["one", "two", "all", "more"]
)
def test_the_last_lines_are_found(log: Path, count: int, place: int) -> None:
    """The last lines are found, including an unfinished one."""
    write(log, b"aaa\nbbb\nccc")

    assert logs.find_last_lines(log, count, 100) == place
    write(log, b"\n")
    assert logs.find_last_lines(log, count, 100) == place


def test_the_last_lines_are_whole(log: Path) -> None:
    """A partial line at the start of the searched part is left out."""
    write(log, b"aaa\nbbb\nccc\n")

    assert logs.find_last_lines(log, 9, 6) == 8
    assert logs.find_last_lines(log.with_name("log"), 1, 6) == 8


def test_a_log_that_is_nothing_but_a_hole(log: Path) -> None:
    """A sparse file without data has no lines, and is no error."""
    os.truncate(log, 10 * BLOCK)

    assert logs.read_log(log, 0, 10) == LogChunk(10 * BLOCK, b"")
    assert logs.find_last_lines(log, 1, 100) == 10 * BLOCK
