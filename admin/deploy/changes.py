"""Changes to deployed functions: written to the store first, then to memory, one at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any, Final

import structlog

from admin.deploy.compiled_models import CompiledModels
from admin.deploy.plan import Plan, alias_taken
from admin.deploy.upstream_keys import UpstreamKeyReader
from admin.deploy.verify import Verified
from admin.store import Store
from registry.catalog import Deployed
from registry.errors import (
    Conflict,
    PreconditionFailed,
    PreconditionRequired,
    Refused,
    StoreUnavailable,
    Unknown,
)
from registry.manifest import rescaled
from registry.model.functions import Function
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.names import check_alias
from registry.spec import made_files, profile_engine
from registry.store.records import encode_record

log = structlog.get_logger()

ALIASES_MAX: Final = 100
"""Max aliases of a function."""


def etag(function: Function) -> str:
    """Return a strong ETag, which changes whenever the function's settings or traffic change."""
    return f'"{hashlib.sha256(encode_record(function).encode()).hexdigest()[:16]}"'


def check_match(header: str | None, function: Function) -> None:
    """Raise unless `If-Match` has the function's current ETag. `*` matches any function; weak tags
    never match."""
    if header is None:
        raise PreconditionRequired(
            f"a change of {function.name} needs the header If-Match with the ETag of a GET"
        )
    tags = [tag.strip() for tag in header.split(",")]
    if "*" not in tags and etag(function) not in tags:
        raise PreconditionFailed(
            f"{function.name} has changed since it was read: expected If-Match {etag(function)},"
            f" got {header[:200]}"
        )


def changed_settings(before: Function, after: Function) -> list[str]:
    """Return the keys of function.toml that differ, like "labels" and "scaling.idle_s". A change of
    these keys creates no new revision."""
    found = ["labels"] if before.labels != after.labels else []
    for name, old, new in (
        ("scaling", before.scaling, after.scaling),
        ("limits", before.limits, after.limits),
        ("limits", before.exchange, after.exchange),
        ("health", before.health, after.health),
    ):
        was, now = asdict(old) if old else {}, asdict(new) if new else {}
        found += [f"{name}.{key}" for key in now if now[key] != was.get(key)]
    return found


class Changes:
    """All changes of a function except its removal. Each may raise StoreUnavailable, and then
    nothing has changed.

    Each change computes the stored record from the one in memory, so a lock covers both writes.
    """

    def __init__(self, store: Store, upstream_keys: UpstreamKeyReader | None = None) -> None:
        """`upstream_keys` has the key of a new revision before the catalog has the revision."""
        self._store = store
        self._upstream_keys = upstream_keys
        self._writing = asyncio.Lock()

    async def first(self, draft: Plan, verified: Verified) -> Deployed:
        """Store a new function with its first revision."""
        async with self._writing, self._with_key(verified.revision):
            function, numbered = await self._store.functions.deploy(
                draft.function, verified.revision, draft.bundle, verified.profile
            )
            self._store.bundles[draft.bundle.digest] = draft.bundle
            deployed = Deployed(function, numbered, verified.profile)
            self._store.catalog.put(deployed)
        return deployed

    async def keep(self, draft: Plan, current: Deployed) -> None:
        """Change a function's settings. Its revisions and its traffic stay as they are."""
        async with self._writing:
            function = replace(draft.function, revision=current.revision.number)
            await self._save(self._with_names(function))

    async def stage(self, draft: Plan, verified: Verified, operation: str) -> Deployed:
        """Store a further revision without traffic, staged by this operation."""
        async with self._writing, self._with_key(verified.revision):
            numbered = await self._store.traffic.stage(
                verified.revision, draft.bundle, verified.profile, operation
            )
            self._store.bundles[draft.bundle.digest] = draft.bundle
            current = self._store.catalog.resolve(numbered.name)
            deployed = Deployed(current.function, numbered, verified.profile)
            self._store.catalog.put(deployed)
        return deployed

    async def add(self, draft: Plan, verified: Verified) -> Deployed:
        """Store a further revision that no operation gives traffic; callers name it."""
        async with self._writing, self._with_key(verified.revision):
            numbered = await self._store.functions.add(
                verified.revision, draft.bundle, verified.profile
            )
            self._store.bundles[draft.bundle.digest] = draft.bundle
            current = self._store.catalog.resolve(numbered.name)
            deployed = Deployed(current.function, numbered, verified.profile)
            self._store.catalog.put(deployed)
        return deployed

    async def staged(self, operation: str, name: str) -> Deployed | None:
        """Return the revision that the operation staged before its server died, if any."""
        number = await self._store.traffic.staged(operation)
        return self._store.catalog.find(f"{name}@{number}") if number is not None else None

    async def move(self, target: Deployed, settings: Function | None = None) -> None:
        """Move a function's traffic to one of its revisions, with `settings` if given."""
        name, number = target.revision.name, target.revision.number
        async with self._writing:
            now = settings or self._store.catalog.resolve(name).function
            function = self._with_names(replace(now, revision=number))
            await self._store.traffic.move(function)
            self._store.catalog.put_function(function)

    async def unstage(self, operation: str) -> None:
        """Remove the revision that the operation staged, if any."""
        async with self._writing:
            gone = await self._store.traffic.unstage(operation)
            if gone is not None and self._store.catalog.find(f"{gone[0]}@{gone[1]}"):
                self._store.catalog.remove_revisions(gone[0], [gone[1]])

    async def unstage_abandoned(self, running: Collection[str]) -> None:
        """Remove staged revisions whose operations are not in `running` and will not be resumed."""
        for operation in await self._store.traffic.abandoned(running):
            await self.unstage(operation)

    async def rescale(self, name: str, match: str | None, changes: Mapping[str, Any]) -> Function:
        """Change a function's scaling if `match`, the client's `If-Match`, has its current ETag.

        Raises UnknownFunction, PreconditionRequired, PreconditionFailed, or BadRequest.
        """
        async with self._writing:
            function = self._store.catalog.resolve(name).function
            check_match(match, function)
            changed = replace(function, scaling=rescaled(function.scaling, changes))
            await self._save(changed)
        return changed

    async def add_alias(self, name: str, alias: str) -> tuple[Function, bool]:
        """Give a function's model a further name; return the function, and whether it is new.

        Raises UnknownFunction, BadRequest if that is no alias, Refused if the function has no model
        at /v1, or Conflict if another function has that name, or this one ALIASES_MAX.
        """
        check_alias(alias)
        async with self._writing:
            catalog = self._store.catalog
            deployed = catalog.resolve(name)
            function, server = deployed.function, deployed.revision.server
            if alias in function.aliases:
                return function, False
            if server is None or server.api is None:
                raise Refused(
                    f"{name} has no model at /v1, so it takes no alias: {deployed.revision.ref} has"
                    " no [openai] in its function.toml"
                )
            if catalog.find(alias, function.namespace) is not None:
                raise Conflict(f"{alias} is the name of a function", detail={"function": alias})
            if owner := catalog.owner_of(alias, function.namespace):
                raise alias_taken(alias, owner)
            if len(function.aliases) >= ALIASES_MAX:
                raise Conflict(f"{name} has {ALIASES_MAX} aliases already; remove one first")
            changed = replace(function, aliases=tuple(sorted((*function.aliases, alias))))
            await self._save(changed)
        return changed, True

    async def remove_alias(self, alias: str) -> Function:
        """Take an alias from the function that has it; return that function. Raises Unknown."""
        async with self._writing:
            owner = self._store.catalog.owner_of(alias)
            if owner is None:
                raise Unknown(f"no alias {alias[:200]!r}")
            function = self._store.catalog.resolve(owner).function
            left = tuple(one for one in function.aliases if one != alias)
            changed = replace(function, aliases=left)
            await self._save(changed)
        return changed

    async def keep_refutation(self, key: str, reason: str) -> None:
        """Store that a joined run of this revision (by its pool's key) lost rows. The refutation
        holds for every revision that runs the same model of the same bundle."""
        async with self._writing:
            namespace, _, ref = key.partition("/")
            found = self._store.catalog.find(ref, namespace)
            if found is None or found.profile is None:
                return
            profile = replace(found.profile, refuted_at_runtime=reason)
            await self._store.functions.put_profile(profile)
            self._share(found.revision, profile)

    async def keep_profile(self, revision: Revision, profile: Profile) -> None:
        """Store the measurements of a further trial of a revision."""
        async with self._writing:
            await self._store.functions.put_profile(profile)
            self._share(revision, profile)

    def _share(self, revision: Revision, profile: Profile) -> None:
        """Give the profile to all revisions with this model of this bundle, as a restart would."""
        ran = (revision.bundle, profile_engine(revision), revision.model)
        catalog = self._store.catalog
        for one in list(catalog.every()):
            other = one.revision
            if (other.bundle, profile_engine(other), other.model) == ran:
                catalog.put(replace(one, profile=profile))

    def _with_key(self, revision: Revision) -> AbstractAsyncContextManager[None]:
        """Have the key that the gateway sends to a revision's server."""
        return nullcontext() if self._upstream_keys is None else self._upstream_keys.held(revision)

    def _with_names(self, function: Function) -> Function:
        """Return a function with the further names that it has now: a deploy began before."""
        found = self._store.catalog.find(function.name, function.namespace)
        if found is None:
            return function
        now = found.function
        return replace(function, aliases=now.aliases, oip_name=now.oip_name)

    async def _save(self, function: Function) -> None:
        await self._store.functions.save_function(function)
        self._store.catalog.put_function(function)


class Removal:
    """Removal from the store and, in the same turn of the event loop, from memory.

    Clean-up never raises: a file or revision that cannot be removed now is removed next time.
    """

    def __init__(self, store: Store, models: CompiledModels) -> None:
        self._store = store
        self._models = models

    async def remove(self, name: str) -> None:
        """Remove a function with all its revisions. Raises UnknownFunction, StoreUnavailable."""
        await self._store.functions.remove_function(name)
        self._store.catalog.remove(name)

    async def trim(self, name: str) -> None:
        """Remove the oldest revisions beyond `revisions_keep`."""
        try:
            keep = self._store.settings.revisions_keep
            gone = await self._store.functions.trim_revisions(name, keep)
        except StoreUnavailable as error:
            log.warning("old revisions are kept for now", name=name, reason=error.message)
            return
        if gone:
            self._store.catalog.remove_revisions(name, gone)

    async def sweep(self, in_use: Collection[str], now_s: float) -> None:
        """Remove blobs that no revision uses, except those with a sha256 in `in_use`. Removes no
        blobs before the store's `sweeps_from_s`."""
        self._forget_bundles()
        if now_s >= self._store.sweeps_from_s:
            await self._sweep(in_use, now_s)
        self.settle()

    def settle(self) -> None:
        """Tell the counts of uploads which blobs the revisions need."""
        blobs, bundles = self._store.blobs, self._store.bundles.values()
        needed = {file.sha256 for bundle in bundles for file in bundle.files}
        needed |= self._store.builds.referenced_blobs() | self._made()
        blobs.unneeded.settle(needed, blobs.has)

    async def _sweep(self, in_use: Collection[str], now_s: float) -> None:
        functions, settings = self._store.functions, self._store.settings
        builds = self._store.builds
        try:
            await functions.remove_orphans()
            await builds.keep_only(self._models.groups(self._store.catalog))
            keep = await functions.referenced_blobs() | builds.referenced_blobs()
            keep |= self._made() | set(in_use)
            await asyncio.to_thread(self._store.blobs.sweep, keep, settings.blob_keep_s, now_s)
        except StoreUnavailable as error:
            log.warning("unused files are kept for now", reason=error.message)

    def _made(self) -> set[str]:
        """Return the sha256 of all prepared and optimised files of current revisions. A profile
        without a revision is kept for a while, but these files are not."""
        profiles = (deployed.profile for deployed in self._store.catalog.every())
        return {file.sha256 for one in profiles if one is not None for file in made_files(one)}

    def _forget_bundles(self) -> None:
        catalog, bundles = self._store.catalog, self._store.bundles
        used = {deployed.revision.bundle for deployed in catalog.every()}
        for digest in bundles.keys() - used:
            del bundles[digest]
