"""Parts of a revision, stored alone: a deploy stores them together (`Functions.add`)."""

from __future__ import annotations

from registry.model.bundles import Bundle
from registry.model.revisions import Revision
from registry.store import functions as store
from registry.store.functions import Functions


async def put_bundle(functions: Functions, bundle: Bundle) -> None:
    """Store a bundle in a transaction of its own."""
    async with functions._database.write() as transaction:
        await store.put_bundle(transaction, bundle)


async def add_revision(functions: Functions, revision: Revision) -> Revision:
    """Store a revision under its function's next number in a transaction of its own."""
    async with functions._database.write() as transaction:
        return await store.add_revision(transaction, revision)
