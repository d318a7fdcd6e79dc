"""Storage of operations, which a restart resumes, and of the steps of their rollouts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from registry.errors import Conflict, Unknown
from registry.model.bundles import Bundle
from registry.model.functions import NAMESPACE, Function
from registry.model.operations import Operation
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.store import functions
from registry.store.database import Database, Transaction
from registry.store.records import decode_record, encode_record

RUNNING_MAX: Final = 200
LIST_MAX: Final = 1000


class Operations:
    """Durable storage of operations; of the ended ones only the newest `ended_max` are kept."""

    def __init__(self, database: Database, *, ended_max: int = 200) -> None:
        self._database = database
        self._ended_max = ended_max

    async def put(self, operation: Operation) -> None:
        """Store a new operation. Raises Conflict if the id is taken or RUNNING_MAX are running."""
        async with self._database.write() as transaction:
            count = await transaction.query(
                "SELECT count(*) FROM operations WHERE state = 'running'"
            )
            if operation.state == "running" and count[0][0] >= RUNNING_MAX:
                raise Conflict(f"{RUNNING_MAX} operations run already; wait for one to end")
            await transaction.query(
                "INSERT INTO operations (namespace, id, state, record) VALUES (?, ?, ?, ?)",
                (operation.namespace, operation.id, operation.state, encode_record(operation)),
            )
            await self._forget_old(transaction)

    async def update(self, operation: Operation) -> None:
        """Replace a stored operation. Raises Unknown if there is none with that id."""
        async with self._database.write() as transaction:
            rows = await transaction.query(
                "UPDATE operations SET state = ?, record = ? WHERE namespace = ? AND id = ?"
                " RETURNING id",
                (operation.state, encode_record(operation), operation.namespace, operation.id),
            )
            if not rows:
                raise Unknown(f"no operation {operation.id!r}")
            await self._forget_old(transaction)

    async def get(self, id: str, namespace: str = NAMESPACE) -> Operation:
        """Return the operation with that id. Raises Unknown."""
        rows = await self._database.read(
            "SELECT record FROM operations WHERE namespace = ? AND id = ?", (namespace, id)
        )
        if not rows:
            raise Unknown(f"no operation {id[:80]!r}")
        return decode_record(rows[0][0], Operation)

    async def running(self) -> list[Operation]:
        """Return the operations of all namespaces that have not ended, oldest first."""
        rows = await self._database.read(
            "SELECT record FROM operations WHERE state = 'running' ORDER BY position"
        )
        return [decode_record(row[0], Operation) for row in rows]

    async def _forget_old(self, transaction: Transaction) -> None:
        await transaction.query(
            "DELETE FROM operations WHERE position IN (SELECT position FROM operations"
            " WHERE state != 'running' ORDER BY position DESC LIMIT -1 OFFSET ?)",
            (self._ended_max,),
        )

    async def list(self, limit: int = LIST_MAX, namespace: str = NAMESPACE) -> list[Operation]:
        """Return the newest `limit` operations, newest first."""
        rows = await self._database.read(
            "SELECT record FROM operations WHERE namespace = ? ORDER BY position DESC LIMIT ?",
            (namespace, max(0, min(limit, LIST_MAX))),
        )
        return [decode_record(row[0], Operation) for row in rows]


class Traffic:
    """Durable steps of a rollout. Every method is one transaction and may raise StoreUnavailable.

    An operation stages a revision under the operation's id. The revision then either gets the
    traffic or is removed. After a crash in between, the next server finds it staged.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stage(
        self, revision: Revision, bundle: Bundle, profile: Profile, operation: str
    ) -> Revision:
        """Store a revision under the next number, without traffic, for that operation."""
        async with self._database.write() as transaction:
            await functions.put_bundle(transaction, bundle)
            numbered = await functions.add_revision(transaction, revision)
            await functions.put_profile(transaction, profile)
            await transaction.query(
                "INSERT INTO staged VALUES (?, ?, ?, ?)",
                (numbered.namespace, operation, numbered.name, numbered.number),
            )
        return numbered

    async def staged(self, operation: str, namespace: str = NAMESPACE) -> int | None:
        """Return the number of the revision that the operation has staged, None if none."""
        rows = await self._database.read(
            "SELECT number FROM staged WHERE namespace = ? AND operation = ?",
            (namespace, operation),
        )
        return int(rows[0][0]) if rows else None

    async def unstage(self, operation: str, namespace: str = NAMESPACE) -> tuple[str, int] | None:
        """Remove the revision that the operation has staged; return its name and number.

        None if there is none.
        """
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
        """Return the operations that have staged a revision and are not in `running`."""
        rows = await self._database.read(
            "SELECT operation FROM staged WHERE namespace = ?", (namespace,)
        )
        return [row[0] for row in rows if row[0] not in running]

    async def move(self, function: Function) -> None:
        """Save a function whose `revision` has the traffic from now on.

        Raises UnknownRevision if that revision is not stored.
        """
        key = (function.namespace, function.name, function.revision)
        async with self._database.write(is_vital=True) as transaction:
            await functions.save_function(transaction, function)
            await transaction.query(
                "DELETE FROM staged WHERE namespace = ? AND name = ? AND number = ?", key
            )

    async def previous(self, name: str, namespace: str = NAMESPACE) -> int | None:
        """Return the target of a rollback: the revision that had the traffic before, if any."""
        rows = await self._database.read(
            "SELECT number FROM traffic WHERE namespace = ? AND name = ? ORDER BY id DESC LIMIT 1",
            (namespace, name),
        )
        return int(rows[0][0]) if rows else None
