"""Which revision has a function's traffic, which had it before, and which waits for it."""

from __future__ import annotations

from collections.abc import Collection

from registry.model import NAMESPACE, Bundle, Function, Profile, Revision
from registry.store import writes
from registry.store.database import Database


class Traffic:
    """The steps of a rollout, durably. Every method is one transaction and may raise
    StoreUnavailable.

    A revision is staged by an operation, under its id, and then either gets the traffic or is
    removed again. Whatever happens in between, the next server finds it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stage(
        self, revision: Revision, bundle: Bundle, profile: Profile, operation: str
    ) -> Revision:
        """Store a revision under the next number, without traffic, for that operation."""
        async with self._database.write() as transaction:
            await writes.put_bundle(transaction, bundle)
            numbered = await writes.add_revision(transaction, revision)
            await writes.put_profile(transaction, profile)
            await transaction.query(
                "INSERT INTO staged VALUES (?, ?, ?, ?)",
                (numbered.namespace, operation, numbered.name, numbered.number),
            )
        return numbered

    async def staged(self, operation: str, namespace: str = NAMESPACE) -> int | None:
        """The number of the revision that the operation has staged, if it still waits."""
        rows = await self._database.read(
            "SELECT number FROM staged WHERE namespace = ? AND operation = ?",
            (namespace, operation),
        )
        return int(rows[0][0]) if rows else None

    async def unstage(self, operation: str, namespace: str = NAMESPACE) -> tuple[str, int] | None:
        """Remove the revision that the operation has staged; its name and number, None for none."""
        async with self._database.write() as transaction:
            rows = await transaction.query(
                "DELETE FROM staged WHERE namespace = ? AND operation = ? RETURNING name, number",
                (namespace, operation),
            )
            if not rows:
                return None
            name, number = rows[0]
            await transaction.query(
                "DELETE FROM revisions WHERE namespace = ? AND name = ? AND number = ?",
                (namespace, name, number),
            )
        return name, number

    async def abandoned(self, running: Collection[str], namespace: str = NAMESPACE) -> list[str]:
        """Operations that have staged a revision and are not among the running ones."""
        rows = await self._database.read(
            "SELECT operation FROM staged WHERE namespace = ?", (namespace,)
        )
        return [row[0] for row in rows if row[0] not in running]

    async def move(self, function: Function) -> None:
        """Save a function whose `revision` has the traffic from now on and waits no more.

        Raises UnknownRevision where that is not stored.
        """
        key = (function.namespace, function.name, function.revision)
        async with self._database.write() as transaction:
            await writes.save_function(transaction, function)
            await transaction.query(
                "DELETE FROM staged WHERE namespace = ? AND name = ? AND number = ?", key
            )

    async def previous(self, name: str, namespace: str = NAMESPACE) -> int | None:
        """Where a rollback goes: the revision that had the traffic before, None for none."""
        rows = await self._database.read(
            "SELECT number FROM traffic WHERE namespace = ? AND name = ? ORDER BY id DESC LIMIT 1",
            (namespace, name),
        )
        return int(rows[0][0]) if rows else None
