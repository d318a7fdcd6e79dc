"""Operations as rows: slow work that a restart must find again."""

from __future__ import annotations

from typing import Final

from registry.errors import Conflict, Unknown
from registry.model import NAMESPACE, Operation
from registry.store.database import Database, Transaction
from registry.store.records import decode_record, encode_record

RUNNING_MAX: Final = 200
LIST_MAX: Final = 1000


class Operations:
    """Operations, durably; of those that ended only the newest `ended_max` are kept."""

    def __init__(self, database: Database, *, ended_max: int = 200) -> None:
        self._database = database
        self._ended_max = ended_max

    async def put(self, operation: Operation) -> None:
        """Store a new one. Raises Conflict where the id is taken or RUNNING_MAX run already."""
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
        """Replace a stored one. Raises Unknown where there is none of that id."""
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
        """The operation of that id. Raises Unknown."""
        rows = await self._database.read(
            "SELECT record FROM operations WHERE namespace = ? AND id = ?", (namespace, id)
        )
        if not rows:
            raise Unknown(f"no operation {id[:80]!r}")
        return decode_record(rows[0][0], Operation)

    async def running(self) -> list[Operation]:
        """Those of every namespace that have not ended, oldest first: what a restart resumes."""
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
        """The newest `limit` operations, newest first."""
        rows = await self._database.read(
            "SELECT record FROM operations WHERE namespace = ? ORDER BY position DESC LIMIT ?",
            (namespace, max(0, min(limit, LIST_MAX))),
        )
        return [decode_record(row[0], Operation) for row in rows]
