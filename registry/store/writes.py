"""Writes of single nouns, for whoever has a transaction that consists of several."""

from __future__ import annotations

from dataclasses import replace

from registry.batching import with_refutation
from registry.errors import UnknownRevision
from registry.model import Bundle, Function, Profile, Revision
from registry.store.database import Transaction
from registry.store.records import decode_record, encode_record


async def put_bundle(transaction: Transaction, bundle: Bundle) -> None:
    """Remember a bundle's files; a bundle known already is left as it is."""
    new = await transaction.query(
        "INSERT INTO bundles VALUES (?) ON CONFLICT DO NOTHING RETURNING digest", (bundle.digest,)
    )
    if new:
        await transaction.execute_many(
            "INSERT INTO bundle_files VALUES (?, ?, ?, ?)",
            [(bundle.digest, file.path, file.size, file.sha256) for file in bundle.files],
        )


async def add_revision(transaction: Transaction, revision: Revision) -> Revision:
    """Store a revision under the next number of its function; returns it with that number."""
    key = (revision.namespace, revision.name)
    rows = await transaction.query(
        "INSERT INTO revision_numbers VALUES (?, ?, 1)"
        " ON CONFLICT DO UPDATE SET last = last + 1 RETURNING last",
        key,
    )
    numbered = replace(revision, number=rows[0][0])
    await transaction.query(
        "INSERT INTO revisions VALUES (?, ?, ?, ?, ?)",
        (*key, numbered.number, numbered.bundle, encode_record(numbered)),
    )
    return numbered


async def put_profile(transaction: Transaction, profile: Profile) -> None:
    """Remember what was measured, in place of what was measured before.

    What a joined run has shown of the same model stays: a trial cannot show that it was wrong.
    """
    key = (profile.bundle, profile.engine, profile.device_kind)
    sql = "SELECT record FROM profiles WHERE bundle = ? AND engine = ? AND device_kind = ?"
    for row in await transaction.query(sql, key):
        profile = with_refutation(profile, decode_record(row[0], Profile))
    await transaction.query(
        "INSERT OR REPLACE INTO profiles (bundle, engine, device_kind, record) VALUES (?, ?, ?, ?)",
        (*key, encode_record(profile)),
    )


async def save_function(transaction: Transaction, function: Function) -> None:
    """Create or replace a function, and remember where its traffic was if that moves.

    Moving to a revision that had it before goes back to that point: what came later is forgotten.
    Raises UnknownRevision where the function's revision is not stored.
    """
    key = (function.namespace, function.name)
    there = (*key, function.revision)
    if not await transaction.query(
        "SELECT 1 FROM revisions WHERE namespace = ? AND name = ? AND number = ?", there
    ):
        raise UnknownRevision(f"function {function.name!r} has no revision {function.revision}")
    before = await transaction.query(
        "SELECT revision FROM functions WHERE namespace = ? AND name = ?", key
    )
    if before and before[0][0] != function.revision:
        await _move(transaction, there, (*key, before[0][0]))
    await transaction.query(
        "INSERT OR REPLACE INTO functions VALUES (?, ?, ?, ?)", (*there, encode_record(function))
    )


async def _move(
    transaction: Transaction, there: tuple[str, str, int], before: tuple[str, str, int]
) -> None:
    back = await transaction.query(
        "SELECT id FROM traffic WHERE namespace = ? AND name = ? AND number = ?", there
    )
    if back:
        await transaction.query(
            "DELETE FROM traffic WHERE namespace = ? AND name = ? AND id >= ?",
            (*there[:2], back[0][0]),
        )
    else:
        await transaction.query(
            "INSERT INTO traffic (namespace, name, number) VALUES (?, ?, ?)", before
        )
