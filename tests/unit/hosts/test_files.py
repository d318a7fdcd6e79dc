from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from hosts.connection import HostConnection
from hosts.errors import NoSpace
from hosts.files import CHUNK, Entry, FileCache, superfluous

pytestmark = pytest.mark.slow
WAIT_S = 20.0
BODY = bytes(range(256)) * (CHUNK // 128)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    (folder / "models" / "r1").mkdir(parents=True)
    return folder


@pytest.fixture
def cache(connection: HostConnection, base: Path) -> FileCache:
    return FileCache(connection, str(base))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(BODY)
    return path


async def test_a_file_is_sent_checked_and_named(cache: FileCache, source: Path, base: Path) -> None:
    """A file arrives under its sha256, with progress from its beginning to its size."""
    done: list[int] = []

    await cache.ship(digest(BODY), len(BODY), source, done.append)

    assert (base / "files" / digest(BODY)).read_bytes() == BODY
    assert await cache.stock() == {digest(BODY): len(BODY)}
    assert done[0] == 0
    assert done[-1] == len(BODY)
    assert done == sorted(done)


async def test_a_file_that_is_there_is_not_sent_again(
    cache: FileCache, source: Path, base: Path
) -> None:
    """A second call finds the file and needs no source."""
    await cache.ship(digest(BODY), len(BODY), source, lambda _: None)
    done: list[int] = []

    await cache.ship(digest(BODY), len(BODY), source.parent / "gone", done.append)

    assert done == [len(BODY)]


async def test_an_upload_goes_on_where_it_stopped(
    cache: FileCache, source: Path, base: Path
) -> None:
    """The bytes of an interrupted upload are not sent again."""
    (base / "files").mkdir()
    (base / "files" / f"{digest(BODY)}.part").write_bytes(BODY[:CHUNK])
    done: list[int] = []

    await cache.ship(digest(BODY), len(BODY), source, done.append)

    assert done[0] == CHUNK
    assert (base / "files" / digest(BODY)).read_bytes() == BODY
    assert not (base / "files" / f"{digest(BODY)}.part").exists()


@pytest.mark.parametrize("wrong", [b"x" * CHUNK, BODY + b"x"], ids=["hole", "longer"])
async def test_a_wrong_partial_upload_is_replaced(
    cache: FileCache, source: Path, base: Path, wrong: bytes
) -> None:
    """A partial file with other bytes, or too many, costs a transfer and nothing else."""
    (base / "files").mkdir()
    (base / "files" / f"{digest(BODY)}.part").write_bytes(wrong)

    await cache.ship(digest(BODY), len(BODY), source, lambda _: None)

    assert (base / "files" / digest(BODY)).read_bytes() == BODY


async def test_changed_content_is_refused(cache: FileCache, source: Path, base: Path) -> None:
    """A source that is not what its name says never becomes a file of the cache."""
    other = digest(b"other")

    with pytest.raises(OSError, match="arrived with another sha256"):
        await cache.ship(other, len(BODY), source, lambda _: None)

    assert list((base / "files").iterdir()) == []


async def test_two_callers_share_a_transfer(cache: FileCache, source: Path) -> None:
    """The second caller for a file waits for the first, and sends nothing."""
    first: list[int] = []
    second: list[int] = []

    async with asyncio.TaskGroup() as group:
        group.create_task(cache.ship(digest(BODY), len(BODY), source, first.append))
        group.create_task(cache.ship(digest(BODY), len(BODY), source, second.append))

    assert first[0] == 0
    assert second == [len(BODY)]


async def test_a_host_without_commands_reads_the_file_back(
    cache: FileCache,
    connection: HostConnection,
    source: Path,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no command runs, the file is read back and checked here."""

    async def run(command: str, *, timeout_s: float, input: bytes = b"") -> object:
        raise ConnectionRefusedError("no more sessions")

    monkeypatch.setattr(connection, "run", run)
    await cache.ship(digest(BODY), len(BODY), source, lambda _: None)

    assert (base / "files" / digest(BODY)).read_bytes() == BODY


async def test_a_full_disk_is_reported_before_a_transfer(cache: FileCache, source: Path) -> None:
    """The error says what is free and what is needed."""
    with pytest.raises(NoSpace, match=r"no space on gpu2 .* MiB free, \d+ MiB are needed"):
        await cache.ship(digest(BODY), 2**60, source, lambda _: None)


async def test_a_file_is_linked_and_its_link_replaced(
    cache: FileCache, source: Path, base: Path
) -> None:
    """A link is a second name; a file of that name is replaced."""
    await cache.ship(digest(BODY), len(BODY), source, lambda _: None)
    target = base / "models" / "r1" / "model.onnx"
    target.write_text("old")

    await cache.link(digest(BODY), str(target))

    assert target.samefile(base / "files" / digest(BODY))


async def test_a_file_is_copied(cache: FileCache, source: Path, base: Path) -> None:
    """A copy has one name, replaces another file, and has no place elsewhere."""
    await cache.ship(digest(BODY), len(BODY), source, lambda _: None)
    target = base / "models" / "r1" / "it's w.bin"
    target.write_text("old")

    await cache.copy(digest(BODY), len(BODY), str(target))

    assert target.read_bytes() == BODY
    assert (target.stat().st_nlink, target.stat().st_mode & 0o777) == (1, 0o644)
    with pytest.raises(ValueError, match="below"):
        await cache.copy(digest(BODY), len(BODY), str(base / "files" / "x"))
    with pytest.raises(FileNotFoundError):
        await cache.copy(digest(b"gone"), 4, str(target))
    with pytest.raises(OSError, match=r"copying .*/none/w: .+"):
        await cache.copy(digest(BODY), len(BODY), str(base / "models" / "none" / "w"))


@pytest.mark.parametrize("target", ["../x", "files/x", "models", "models/../files/x", "/etc/x"])
async def test_links_stay_below_the_models(cache: FileCache, base: Path, target: str) -> None:
    """A path elsewhere is refused."""
    with pytest.raises(ValueError, match="below"):
        await cache.link(digest(BODY), str(base / target))


async def test_a_missing_file_cannot_be_linked(cache: FileCache, base: Path) -> None:
    """A file that was removed meanwhile has an error of its own."""
    with pytest.raises(FileNotFoundError):
        await cache.link(digest(BODY), str(base / "models" / "r1" / "model.onnx"))


async def test_the_oldest_files_go_and_used_ones_stay(
    cache: FileCache, base: Path, tmp_path: Path
) -> None:
    """Trimming removes what no replica has a link to, the file used longest ago first."""
    bodies = [bytes([n]) * 1000 for n in range(4)]
    for body in bodies:
        (tmp_path / "one").write_bytes(body)
        await cache.ship(digest(body), 1000, tmp_path / "one", lambda _: None)
    (base / "files" / f"{digest(b'left')}.part").write_bytes(b"x")
    await cache.link(digest(bodies[0]), str(base / "models" / "r1" / "a"))
    for age, body in enumerate(bodies):
        path = base / "files" / digest(body)
        os.utime(path, (1000 + age, 1000 + age))

    await cache.trim(2500, {digest(bodies[1])})

    assert set(await cache.stock()) == {digest(body) for body in bodies[:2]}
    assert len(list((base / "files").iterdir())) == 2


async def test_a_host_without_files_has_an_empty_stock(cache: FileCache) -> None:
    """A folder that does not exist is an empty cache."""
    assert await cache.stock() == {}


def test_superfluous_files_are_the_oldest_beyond_the_limit() -> None:
    """Partial uploads go in any case; files in use and of unknown use stay."""
    a, b, c, d = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
    entries = [
        Entry(a, 10, 1.0, 2),
        Entry(b, 10, 2.0, 0),
        Entry(c, 10, 4.0, 1),
        Entry(d, 10, 3.0, 1),
        Entry(f"{a}.part", 10, 9.0, 1),
    ]

    assert [one.name for one in superfluous(entries, 100, ())] == [f"{a}.part"]
    assert [one.name for one in superfluous(entries, 30, ())] == [f"{a}.part", d]
    assert [one.name for one in superfluous(entries, 0, {d, f"{a}.part"})] == [c]
