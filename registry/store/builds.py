"""Builds and compiled models: in the database, and in memory for those that need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from registry.builds import TYPES_MAX, Build, group_of
from registry.compilation import Compiled
from registry.model.bundles import BundleFile
from registry.store.database import Database, Transaction
from registry.store.records import decode_record, encode_record

Decide = Callable[[Build], Build]


class BuildStore:
    """Durable storage of builds and compiled models by their target's digest, with a copy in
    memory. Single-threaded but for the database.

    Every writing method is one transaction and may raise StoreUnavailable; memory is then as it
    was. `decide` returns a build's next state from its present one, Build() if there is none. It is
    called within the transaction, so that of two changes at once neither is lost.
    """

    def __init__(
        self, database: Database, builds: dict[str, Build], compiled: dict[str, Compiled]
    ) -> None:
        self._database = database
        self._builds = builds
        self._compiled = compiled
        self._groups: dict[str, dict[str, Compiled]] = {}
        for target, one in compiled.items():
            self._groups.setdefault(group_of(target), {})[target] = one

    @classmethod
    async def open(cls, database: Database, is_stored: Callable[[BundleFile], bool]) -> BuildStore:
        """Read everything. A compiled model counts as missing unless each of its files `is_stored`:
        a restored database may be older or newer than the files. Raises StoreUnavailable."""
        rows = await database.read("SELECT target, record FROM builds")
        builds = {row[0]: decode_record(row[1], Build) for row in rows}
        rows = await database.read("SELECT target, record FROM compiled")
        found = {row[0]: decode_record(row[1], Compiled) for row in rows}
        whole = {key: one for key, one in found.items() if all(map(is_stored, one.files))}
        return cls(database, builds, whole)

    def build(self, target: str) -> Build | None:
        """Return the state of a target's build, None if none was tried."""
        return self._builds.get(target)

    def all_builds(self) -> Mapping[str, Build]:
        """Return the state of every build, by target."""
        return MappingProxyType(self._builds)

    def compiled(self, target: str) -> Compiled | None:
        """Return a target's compiled model, None if there is none."""
        return self._compiled.get(target)

    def compiled_in(self, group: str) -> list[Compiled]:
        """Return the compiled models of a group of targets: one for each type of device."""
        return list(self._groups.get(group, {}).values())

    def all_compiled(self) -> list[Compiled]:
        """Return every compiled model, oldest first."""
        return sorted(self._compiled.values(), key=lambda one: one.made_s)

    def referenced_blobs(self) -> set[str]:
        """Return the sha256 of every file of a compiled model; a sweep must keep these blobs."""
        return {file.sha256 for one in self._compiled.values() for file in one.files}

    async def change(self, target: str, decide: Decide) -> None:
        """Change the state of a target's build."""
        async with self._database.write() as transaction:
            build = await self._decided(transaction, target, decide)
        self._builds[target] = build

    async def put(self, compiled: Compiled, decide: Decide) -> None:
        """Store a compiled model, which replaces an earlier one, and change the state of its
        build."""
        target = compiled.target.digest
        async with self._database.write() as transaction:
            build = await self._decided(transaction, target, decide)
            await transaction.query(
                "INSERT OR REPLACE INTO compiled VALUES (?, ?)", (target, encode_record(compiled))
            )
        self._builds[target], self._compiled[target] = build, compiled
        self._groups.setdefault(group_of(target), {})[target] = compiled

    async def drop(self, target: str, decide: Decide) -> None:
        """Remove a target's compiled model, if any, and change the state of its build."""
        async with self._database.write() as transaction:
            build = await self._decided(transaction, target, decide)
            await transaction.query("DELETE FROM compiled WHERE target = ?", (target,))
        self._builds[target] = build
        self._forget_compiled(target)

    async def keep_only(self, groups: Collection[str]) -> int:
        """Remove the targets of all other groups, and of each group all but the TYPES_MAX targets
        that were compiled or tried last; return how many there were."""
        known = sorted(self._builds.keys() | self._compiled.keys(), key=self._used_s, reverse=True)
        counts: Counter[str] = Counter()
        gone = []
        for target in known:
            counts[group := group_of(target)] += 1
            if group not in groups or counts[group] > TYPES_MAX:
                gone.append(target)
        if gone:
            keys = [(target,) for target in gone]
            async with self._database.write() as transaction:
                await transaction.execute_many("DELETE FROM builds WHERE target = ?", keys)
                await transaction.execute_many("DELETE FROM compiled WHERE target = ?", keys)
        for target in gone:
            self._builds.pop(target, None)
            self._forget_compiled(target)
        return len(gone)

    def _used_s(self, target: str) -> float:
        build, compiled = self._builds.get(target, Build()), self._compiled.get(target)
        return max(build.began_s, build.ended_s, compiled.made_s if compiled else 0.0)

    def _forget_compiled(self, target: str) -> None:
        if self._compiled.pop(target, None) is None:
            return
        there = self._groups[group_of(target)]
        del there[target]
        if not there:
            del self._groups[group_of(target)]

    async def _decided(self, transaction: Transaction, target: str, decide: Decide) -> Build:
        """Store the next state of a target's build; return it."""
        build = decide(self._builds.get(target, Build()))
        await transaction.query(
            "INSERT OR REPLACE INTO builds VALUES (?, ?)", (target, encode_record(build))
        )
        return build
