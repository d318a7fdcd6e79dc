"""Tests of the stored locks of Python functions."""

from __future__ import annotations

import pytest

from registry.errors import Unknown
from registry.store.database import Database
from registry.store.locks import LockStore


async def test_the_newest_lock_of_equal_needs_is_found(database: Database) -> None:
    """Locks are found by key and by digest, and only those that are named are kept."""
    locks = LockStore(database)
    assert await locks.find("k") is None
    first, second = await locks.put("k", "one"), await locks.put("k", "two")
    assert await locks.put("k", "one") == first
    assert await locks.find("k") == "two"
    assert await locks.text(first) == "one"
    await locks.keep_only({first})
    assert await locks.find("k") == "one"
    with pytest.raises(Unknown, match=second):
        await locks.text(second)
    await locks.keep_only({first})
    assert await locks.text(first) == "one"
