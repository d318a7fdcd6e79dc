"""Durable storage of the decision about callers without a key: columns of the store's one row, so
that every copy of the database has it."""

from __future__ import annotations

import msgspec

from registry.openness import CLOSED, Decision, Openness
from registry.store.database import Database, Transaction

_SET = "UPDATE store SET openness = ?, exposure = ?"


class OpennessStore:
    """Durable storage of the decision. It may close at any time; only `save` opens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Decision:
        """Return the stored decision. One that cannot be read counts as closed."""
        rows = await self._database.read("SELECT openness, exposure FROM store")
        try:
            exposure = msgspec.json.decode(rows[0][1], type=tuple[str, ...])
            return Decision(Openness(rows[0][0]), exposure)
        except (ValueError, msgspec.DecodeError):
            return CLOSED

    async def save(self, decision: Decision) -> None:
        """Replace the decision. Raises StoreUnavailable."""
        async with self._database.write(is_vital=True) as transaction:
            await save_decision(transaction, decision)


async def save_decision(transaction: Transaction, decision: Decision) -> None:
    """Replace the decision as a part of a transaction."""
    exposure = msgspec.json.encode(list(decision.exposure)).decode()
    await transaction.query(_SET, (decision.openness.value, exposure))
