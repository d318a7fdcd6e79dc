"""Storage of functions, revisions, bundles and profiles.

The module's functions write within the caller's transaction; each method of `Functions` is one
transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, TypeVar

from registry.batching import with_refutation
from registry.catalog import Deployed
from registry.errors import Conflict, UnknownFunction, UnknownRevision
from registry.model.bundles import Bundle, BundleFile
from registry.model.functions import NAMESPACE, Function
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.spec import profile_engine
from registry.store.database import Database, Transaction
from registry.store.records import SharedParts, decode_record, encode_record

T = TypeVar("T")
_STAY: Final = (
    "SELECT revision FROM functions WHERE namespace = ?1 AND name = ?2"
    " UNION SELECT number FROM staged WHERE namespace = ?1 AND name = ?2"
    " UNION SELECT number FROM (SELECT number FROM traffic WHERE namespace = ?1 AND name = ?2"
    " ORDER BY id DESC LIMIT 1)"
)
"""Numbers that are never trimmed: with traffic, waiting for traffic, and next in a rollback."""


class Functions:
    """Durable storage of deployments.

    Every method is one transaction and may raise StoreUnavailable.
    """

    def __init__(self, database: Database, *, profiles_max: int = 1000) -> None:
        self._database = database
        self._profiles_max = profiles_max

    async def load_all(self) -> list[Deployed]:
        """Return every revision of every function, with its most recent profile."""
        shared = SharedParts()
        async with self._database.write() as transaction:

            async def nouns(table: str, order: str, kind: type[T]) -> list[T]:
                sql = f"SELECT record FROM {table} ORDER BY {order}"  # noqa: S608 - no input
                pieces = transaction.stream(sql)
                return [noun async for rows in pieces for noun in shared.decode(rows, kind)]

            functions = await nouns("functions", "name", Function)
            revisions = await nouns("revisions", "number", Revision)
            profiles = await nouns("profiles", "id", Profile)
        by_name = {(one.namespace, one.name): one for one in functions}
        latest = {(one.bundle, one.engine): one for one in profiles}
        return [
            Deployed(owner, revision, latest.get((revision.bundle, profile_engine(revision))))
            for revision in revisions
            if (owner := by_name.get((revision.namespace, revision.name))) is not None
        ]

    async def load_bundles(self) -> dict[str, Bundle]:
        """Return the bundle of every revision by digest, in one query.

        Equal files share one object. A server function's bundle may be empty.
        """
        shared: dict[BundleFile, BundleFile] = {}
        files: dict[str, tuple[BundleFile, ...]] = {}
        async with self._database.write() as transaction:
            async for rows in transaction.stream(
                "SELECT bundle, path, size, sha256 FROM (SELECT DISTINCT bundle FROM revisions)"
                " LEFT JOIN bundle_files ON digest = bundle ORDER BY bundle, path"
            ):
                for digest, path, *row in rows:
                    there = files.setdefault(digest, ())
                    if path is not None:
                        file = BundleFile(path, *row)
                        files[digest] = (*there, shared.setdefault(file, file))
        return {digest: Bundle(digest, found) for digest, found in files.items()}

    async def add(self, revision: Revision, bundle: Bundle, profile: Profile) -> Revision:
        """Store all three, the revision under its function's next number and without traffic."""
        async with self._database.write() as transaction:
            await put_bundle(transaction, bundle)
            numbered = await add_revision(transaction, revision)
            await put_profile(transaction, profile)
        return numbered

    async def save_function(self, function: Function) -> None:
        """Create or replace a function. Raises UnknownRevision if its revision is not stored."""
        async with self._database.write(is_vital=True) as transaction:
            await save_function(transaction, function)

    async def remove_function(self, name: str, namespace: str = NAMESPACE) -> None:
        """Remove a function and its revisions; its numbers are not reused.

        Raises UnknownFunction.
        """
        key = (namespace, name)
        async with self._database.write(is_vital=True) as transaction:
            gone = await transaction.query(
                "DELETE FROM functions WHERE namespace = ? AND name = ? RETURNING name", key
            )
            if not gone:
                raise UnknownFunction(f"no function {name!r}")
            await transaction.query("DELETE FROM revisions WHERE namespace = ? AND name = ?", key)
            await transaction.query("DELETE FROM aliases WHERE namespace = ? AND name = ?", key)
            await transaction.query("DELETE FROM oip_names WHERE namespace = ? AND name = ?", key)

    async def trim_revisions(
        self, name: str, keep: int, namespace: str = NAMESPACE
    ) -> tuple[int, ...]:
        """Remove the oldest revisions so that `keep` remain, and return the removed numbers.

        Never removed are the revision with the traffic, the target of a rollback, and revisions
        that wait for traffic. The caller removes the returned numbers from the catalog.
        """
        async with self._database.write() as transaction:
            rows = await transaction.query(
                "SELECT number FROM revisions WHERE namespace = ? AND name = ?", (namespace, name)
            )
            stay = {row[0] for row in await transaction.query(_STAY, (namespace, name))}
            others = sorted((row[0] for row in rows if row[0] not in stay), reverse=True)
            gone = others[max(0, keep - len(stay)) :]
            await transaction.execute_many(
                "DELETE FROM revisions WHERE namespace = ? AND name = ? AND number = ?",
                [(namespace, name, number) for number in gone],
            )
        return tuple(sorted(gone))

    async def put_profile(self, profile: Profile) -> None:
        """Store a profile, replacing an earlier one with the same key."""
        async with self._database.write() as transaction:
            await put_profile(transaction, profile)

    async def find_profile(self, bundle: str, engine: str, device_kind: str) -> Profile | None:
        """Return the profile with exactly this key, None if none is stored."""
        rows = await self._database.read(
            "SELECT record FROM profiles WHERE bundle = ? AND engine = ? AND device_kind = ?",
            (bundle, engine, device_kind),
        )
        return decode_record(rows[0][0], Profile) if rows else None

    async def deploy(
        self, function: Function, revision: Revision, bundle: Bundle, profile: Profile | None
    ) -> tuple[Function, Revision]:
        """Store all four and move the function's traffic to the revision, in one transaction.

        A revision with number 0 gets the next number; any other must be stored already. Returns
        both as stored. Raises Conflict if they do not belong together, or UnknownRevision.
        """
        _check_together(function, revision, bundle)
        async with self._database.write() as transaction:
            await put_bundle(transaction, bundle)
            if revision.number == 0:
                revision = await add_revision(transaction, revision)
            if profile is not None:
                await put_profile(transaction, profile)
            function = replace(function, revision=revision.number)
            await save_function(transaction, function)
        return function, revision

    async def remove_orphans(self, keep: Collection[str] = ()) -> int:
        """Remove bundles that no revision uses, except the digests in `keep`; return how many.

        The newest `profiles_max` of their profiles are kept: the same bytes may be deployed again.
        """
        async with self._database.write() as transaction:
            rows = await transaction.query(
                "SELECT digest FROM bundles WHERE digest NOT IN (SELECT bundle FROM revisions)"
            )
            orphans = [(row[0],) for row in rows if row[0] not in keep]
            await transaction.execute_many("DELETE FROM bundles WHERE digest = ?", orphans)
            await transaction.query(
                "DELETE FROM profiles WHERE id IN (SELECT id FROM profiles"
                " WHERE bundle NOT IN (SELECT bundle FROM revisions)"
                " ORDER BY id DESC LIMIT -1 OFFSET ?)",
                (self._profiles_max,),
            )
        return len(orphans)

    async def referenced_blobs(self) -> set[str]:
        """Return the sha256 of every file of every known bundle; a sweep must keep these blobs."""
        rows = await self._database.read("SELECT DISTINCT sha256 FROM bundle_files")
        return {row[0] for row in rows}


def _check_together(function: Function, revision: Revision, bundle: Bundle) -> None:
    if (function.namespace, function.name) != (revision.namespace, revision.name):
        raise Conflict(f"{revision.key} is no revision of {function.namespace}/{function.name}")
    if revision.bundle != bundle.digest:
        raise Conflict(f"{revision.name}: expected bundle {revision.bundle}, got {bundle.digest}")


async def put_bundle(transaction: Transaction, bundle: Bundle) -> None:
    """Store a bundle's files; a bundle that is already stored is not changed."""
    new = await transaction.query(
        "INSERT INTO bundles VALUES (?) ON CONFLICT DO NOTHING RETURNING digest", (bundle.digest,)
    )
    if new:
        await transaction.execute_many(
            "INSERT INTO bundle_files VALUES (?, ?, ?, ?)",
            [(bundle.digest, file.path, file.size, file.sha256) for file in bundle.files],
        )


async def add_revision(transaction: Transaction, revision: Revision) -> Revision:
    """Store a revision under the next number of its function, from 1 on and never reused; return it
    with that number. Raises Conflict if its bundle is unknown."""
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
    """Store a profile, replacing an earlier one with the same key.

    A refutation by a batched run of the same model is kept: a trial cannot disprove it.
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
    """Create or replace a function, and record the previous revision if its traffic moves.

    A move back to an earlier revision of the record removes that entry and all later ones. Raises
    UnknownRevision if the function's revision is not stored, Conflict if its name, one of its
    aliases or its `oip_name` belongs to another function.
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
    await _claim_names(transaction, function, is_new=not before)
    await _claim_oip_name(transaction, function, is_new=not before)
    await transaction.query(
        "INSERT OR REPLACE INTO functions VALUES (?, ?, ?, ?)", (*there, encode_record(function))
    )


async def _claim_names(transaction: Transaction, function: Function, *, is_new: bool) -> None:
    """Store a function's aliases. No two functions share a name or an alias. Raises Conflict."""
    key = (function.namespace, function.name)
    await transaction.query("DELETE FROM aliases WHERE namespace = ? AND name = ?", key)
    owner = "SELECT name FROM aliases WHERE namespace = ? AND alias = ?"
    if is_new and (found := await transaction.query(owner, key)):
        raise Conflict(f"{function.name} is an alias of {found[0][0]}: choose another name")
    for alias in function.aliases:
        of = (function.namespace, alias)
        if found := await transaction.query(owner, of):
            raise Conflict(f"{alias} is an alias of {found[0][0]} already")
        if await transaction.query("SELECT 1 FROM functions WHERE namespace = ? AND name = ?", of):
            raise Conflict(f"{alias} is the name of a function")
        await transaction.query("INSERT INTO aliases VALUES (?, ?, ?)", (*of, function.name))


async def _claim_oip_name(transaction: Transaction, function: Function, *, is_new: bool) -> None:
    """Store a function's `oip_name`. No two functions share one, and none is another's name. Raises
    Conflict."""
    key = (function.namespace, function.name)
    await transaction.query("DELETE FROM oip_names WHERE namespace = ? AND name = ?", key)
    owner = "SELECT name FROM oip_names WHERE namespace = ? AND oip_name = ?"
    if is_new and (found := await transaction.query(owner, key)):
        raise Conflict(f"{function.name} is the name of {found[0][0]} at /v2: choose another name")
    if not function.oip_name:
        return
    of = (function.namespace, function.oip_name)
    if found := await transaction.query(owner, of):
        raise Conflict(f"{function.oip_name} is the name of {found[0][0]} at /v2 already")
    is_own = function.oip_name == function.name
    there = "SELECT 1 FROM functions WHERE namespace = ? AND name = ?"
    if not is_own and await transaction.query(there, of):
        raise Conflict(f"{function.oip_name} is the name of a function")
    await transaction.query("INSERT INTO oip_names VALUES (?, ?, ?)", (*of, function.name))


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
