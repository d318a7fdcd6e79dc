"""Writes that belong to a larger transaction."""

from __future__ import annotations

import pytest

from registry.errors import UnknownRevision
from registry.store import writes
from registry.store.database import Database
from tests.support.nouns import bundle, function, profile, revision


async def test_they_are_undone_with_their_transaction(database: Database) -> None:
    """Where the last one is impossible, none has happened."""

    async def write_all() -> None:
        async with database.write() as transaction:
            await writes.put_bundle(transaction, bundle())
            assert (await writes.add_revision(transaction, revision())).number == 1
            await writes.put_profile(transaction, profile())
            await writes.save_function(transaction, function(revision=9))

    with pytest.raises(UnknownRevision, match="no revision 9"):
        await write_all()

    for table in ("bundles", "revisions", "profiles", "functions", "revision_numbers"):
        assert await database.read(f"SELECT * FROM {table}") == []


async def test_only_a_move_is_remembered(database: Database) -> None:
    """A new function and one that stays where it is leave no trace."""
    async with database.write() as transaction:
        await writes.put_bundle(transaction, bundle())
        await writes.add_revision(transaction, revision())
        await writes.add_revision(transaction, revision())
        for number in (1, 1, 2, 2):
            await writes.save_function(transaction, function(revision=number))

    assert [tuple(row) for row in await database.read("SELECT name, number FROM traffic")] == [
        ("digits", 1)
    ]
