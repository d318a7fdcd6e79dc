"""Changes of what is deployed: in the store first, then in memory, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from admin.deploy.etag import check_match
from admin.deploy.plan import Plan
from admin.deploy.verification import Verified
from admin.store import Store
from registry.catalog import Deployed
from registry.manifest import rescaled
from registry.model import Function, Profile, Revision


def changed_settings(before: Function, after: Function) -> list[str]:
    """Keys of function.toml by which two functions differ, like "labels" and "scaling.idle_s";
    none of these makes a new revision."""
    found = ["labels"] if before.labels != after.labels else []
    for table in ("scaling", "limits"):
        old, new = asdict(getattr(before, table)), asdict(getattr(after, table))
        found += [f"{table}.{key}" for key in new if new[key] != old[key]]
    return found


class Changes:
    """Every change of a function but its removal. Each may raise StoreUnavailable, and then nothing
    has changed.

    What is written of a function is worked out from what is in memory, so nobody else may change it
    until both are done.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writing = asyncio.Lock()

    async def first(self, draft: Plan, verified: Verified) -> Deployed:
        """Store a function that is new, with its first revision."""
        async with self._writing:
            function, numbered = await self._store.functions.deploy(
                draft.function, verified.revision, draft.bundle, verified.profile
            )
            self._store.bundles[draft.bundle.digest] = draft.bundle
            deployed = Deployed(function, numbered, verified.profile)
            self._store.catalog.put(deployed)
        return deployed

    async def keep(self, draft: Plan, current: Deployed) -> None:
        """Give a function other settings; its revisions stay, and so does its traffic."""
        async with self._writing:
            await self._save(replace(draft.function, revision=current.revision.number))

    async def stage(self, draft: Plan, verified: Verified, operation: str) -> Deployed:
        """Store a further revision that has no traffic, for that operation to go on with."""
        async with self._writing:
            numbered = await self._store.traffic.stage(
                verified.revision, draft.bundle, verified.profile, operation
            )
            self._store.bundles[draft.bundle.digest] = draft.bundle
            current = self._store.catalog.resolve(numbered.name)
            deployed = Deployed(current.function, numbered, verified.profile)
            self._store.catalog.put(deployed)
        return deployed

    async def staged(self, operation: str, name: str) -> Deployed | None:
        """What the operation has staged before its server died, if anything."""
        number = await self._store.traffic.staged(operation)
        return self._store.catalog.find(f"{name}@{number}") if number is not None else None

    async def move(self, target: Deployed, settings: Function | None = None) -> None:
        """Move a function's traffic to a revision of it, with other settings if any are given."""
        name, number = target.revision.name, target.revision.number
        async with self._writing:
            now = settings or self._store.catalog.resolve(name).function
            function = replace(now, revision=number)
            await self._store.traffic.move(function)
            self._store.catalog.put_function(function)

    async def unstage(self, operation: str) -> None:
        """Remove the revision that the operation has staged, if it has."""
        async with self._writing:
            gone = await self._store.traffic.unstage(operation)
            if gone is not None and self._store.catalog.find(f"{gone[0]}@{gone[1]}"):
                self._store.catalog.remove_revisions(gone[0], [gone[1]])

    async def unstage_abandoned(self, running: Collection[str]) -> None:
        """Remove what operations have staged that will not be resumed."""
        for operation in await self._store.traffic.abandoned(running):
            await self.unstage(operation)

    async def rescale(self, name: str, match: str | None, changes: Mapping[str, Any]) -> Function:
        """Change a function's scaling, if it is still as who asks has seen it (`match`).

        Raises UnknownFunction, PreconditionRequired, PreconditionFailed, or BadRequest.
        """
        async with self._writing:
            function = self._store.catalog.resolve(name).function
            check_match(match, function)
            changed = replace(function, scaling=rescaled(function.scaling, changes))
            await self._save(changed)
        return changed

    async def keep_refutation(self, key: str, reason: str) -> None:
        """Remember of a revision, by its pool's key, that a joined run lost rows. It holds for all
        that run the same model of the same bundle."""
        async with self._writing:
            namespace, _, ref = key.partition("/")
            found = self._store.catalog.find(ref, namespace)
            if found is None or found.profile is None:
                return
            profile = replace(found.profile, refuted_at_runtime=reason)
            await self._store.functions.put_profile(profile)
            self._share(found.revision, profile)

    async def keep_profile(self, revision: Revision, profile: Profile) -> None:
        """Remember what a further trial of a revision has measured."""
        async with self._writing:
            await self._store.functions.put_profile(profile)
            self._share(revision, profile)

    def _share(self, revision: Revision, profile: Profile) -> None:
        """Have all revisions with that model of that bundle know its profile, as after a start."""
        ran = (revision.bundle, revision.engine, revision.model)
        catalog = self._store.catalog
        for one in list(catalog.every()):
            other = one.revision
            if (other.bundle, other.engine, other.model) == ran:
                catalog.put(replace(one, profile=profile))

    async def _save(self, function: Function) -> None:
        await self._store.functions.save_function(function)
        self._store.catalog.put_function(function)
