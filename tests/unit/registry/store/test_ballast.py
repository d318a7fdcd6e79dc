"""Room of the disk for commits of keys and settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.store.ballast import MARGIN, Ballast
from registry.store.database import Database

SIZE = 64 * 1024
NUMBER = "INSERT INTO schema_version (name) VALUES (?)"
NAMES = "SELECT name FROM schema_version WHERE name LIKE 'row-%' ORDER BY name"


def ballast(folder: Path, free: int = MARGIN * SIZE, size: int = SIZE) -> Ballast:
    """Return the ballast in `folder` of a disk with so many free bytes."""
    return Ballast(folder / "ballast", size, lambda _folder: free)


def test_it_takes_up_room_that_this_user_alone_may_read(tmp_path: Path) -> None:
    """The file has blocks of its own, not holes, and the mode 0600."""
    assert ballast(tmp_path).fill() is True

    found = (tmp_path / "ballast").stat()
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE
    assert found.st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("before", "free", "size", "after"),
    [
        pytest.param(None, MARGIN * SIZE - 1, SIZE, None, id="a small disk is not filled by it"),
        pytest.param(SIZE, 0, SIZE, SIZE, id="what is there stays, however full the disk"),
        pytest.param(10, MARGIN * SIZE, SIZE, SIZE, id="what a crash has left is replaced"),
        pytest.param(10, 0, SIZE, None, id="and removed where there is no room"),
        pytest.param(SIZE, MARGIN * SIZE, 0, None, id="none is wanted"),
    ],
)
def test_when_it_is_made(
    tmp_path: Path, before: int | None, free: int, size: int, after: int | None
) -> None:
    """`before` and `after`: bytes of the file, None for no file."""
    path = tmp_path / "ballast"
    if before is not None:
        path.write_bytes(b"x" * before)

    there = ballast(tmp_path, free, size).fill()

    assert (path.stat().st_size if path.exists() else None) == after
    assert there is (after is not None)


def test_it_is_given_up_once(tmp_path: Path) -> None:
    """Giving up removes the file, and says whether there was one."""
    one = ballast(tmp_path)
    one.fill()

    assert [one.give_up(), one.give_up()] == [True, False]
    assert not (tmp_path / "ballast").exists()


class Counted(Ballast):
    """Ballast that counts how often it was given up. `database` may grow from then on."""

    given_up = 0
    database: Database | None = None

    def give_up(self) -> bool:
        """Count, besides."""
        self.given_up += 1
        if self.database is not None:
            connection = self.database._writer._raw
            assert connection is not None
            connection.execute("PRAGMA max_page_count = 1000")
        return super().give_up()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[tuple[Database, Counted]]:
    """A database whose pages are used up, and its ballast, which is not made yet."""
    kept = Counted(tmp_path / "ballast", SIZE, lambda _folder: MARGIN * SIZE)
    database = await Database.open(tmp_path / "db", ballast=kept)
    async with database.write() as transaction:
        pages = (await transaction.query("PRAGMA page_count"))[0][0]
        await transaction.query(f"PRAGMA max_page_count = {pages}")
    yield database, kept
    await database.close()


MUCH = [(f"row-{n:0>200}",) for n in range(500)]


async def test_an_ordinary_commit_leaves_it(store: tuple[Database, Counted]) -> None:
    """Only commits of keys and settings may cost the ballast."""
    database, kept = store
    kept.fill()

    with pytest.raises(StoreUnavailable, match="disk full"):
        async with database.write() as transaction:
            await transaction.execute_many(NUMBER, MUCH)

    assert kept.given_up == 0


async def write_all(database: Database) -> None:
    """Write rows as one change of keys or settings."""
    async with database.write(is_vital=True) as transaction:
        await transaction.query(NUMBER, ("row-first",))
        await transaction.execute_many(NUMBER, MUCH)
        await transaction.query(NUMBER, ("row-last",))


async def test_without_room_even_then_nothing_is_changed(
    store: tuple[Database, Counted],
) -> None:
    """If the ballast does not suffice, the transaction is rolled back as a whole."""
    database, kept = store
    kept.fill()

    with pytest.raises(StoreUnavailable, match="disk full"):
        await write_all(database)

    assert kept.given_up == 1
    assert await database.read(NAMES) == []


async def test_a_vital_commit_is_repeated_with_the_room(
    store: tuple[Database, Counted],
) -> None:
    """All statements of the transaction are repeated in their order, whichever met the full
    disk."""
    database, kept = store
    kept.fill()
    kept.database = database

    await write_all(database)

    assert kept.given_up == 1
    found = [row[0] for row in await database.read(NAMES)]
    assert found == [*(row[0] for row in MUCH), "row-first", "row-last"]
