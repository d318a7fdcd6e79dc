"""Locks of Python functions: texts that name all packages of a revision. Opaque here."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from registry.errors import Unknown
from registry.store.database import Database


class LockStore:
    """Durable storage of locks by the sha256 of their text. Methods may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, key: str, text: str) -> str:
        """Store a lock; return its digest. `key` is equal for equal needs."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        async with self._database.write() as transaction:
            await transaction.query(
                "INSERT OR IGNORE INTO locks VALUES (?, ?, ?)", (digest, key, text)
            )
        return digest

    async def find(self, key: str) -> str | None:
        """Return the newest lock with this key, None if there is none."""
        rows = await self._database.read(
            "SELECT text FROM locks WHERE key = ? ORDER BY rowid DESC LIMIT 1", (key,)
        )
        return rows[0][0] if rows else None

    async def text(self, digest: str) -> str:
        """Return a lock. Raises Unknown."""
        rows = await self._database.read("SELECT text FROM locks WHERE digest = ?", (digest,))
        if not rows:
            raise Unknown(f"no lock {digest}")
        return str(rows[0][0])

    async def keep_only(self, digests: Collection[str]) -> None:
        """Remove all other locks."""
        rows = await self._database.read("SELECT digest FROM locks")
        gone = [(row[0],) for row in rows if row[0] not in digests]
        if gone:
            async with self._database.write() as transaction:
                await transaction.execute_many("DELETE FROM locks WHERE digest = ?", gone)
