"""Takes away what is no longer used: functions, old revisions, files."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from admin.store import Store
from registry.errors import StoreUnavailable

log = structlog.get_logger()


class Removal:
    """Removes from the store and, in the same turn of the loop, from what is in memory.

    Tidying is never a reason to fail: what cannot be done now is left to the next time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

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
        """Remove the blobs that no revision uses, but not those whose sha256 is in `in_use`, and
        none before the store sweeps."""
        self._forget_bundles()
        if now_s < self._store.sweeps_from_s:
            return
        functions, settings = self._store.functions, self._store.settings
        try:
            await functions.remove_orphans()
            keep = await functions.referenced_blobs() | self._prepared() | set(in_use)
            await asyncio.to_thread(self._store.blobs.sweep, keep, settings.blob_keep_s, now_s)
        except StoreUnavailable as error:
            log.warning("unused files are kept for now", reason=error.message)

    def _prepared(self) -> set[str]:
        """What replicas of some revision may be given beside its bundle. A profile that no
        revision has stays for a while, what it names does not."""
        profiles = (deployed.profile for deployed in self._store.catalog.every())
        found = (profile.prepared for profile in profiles if profile is not None)
        return {file.sha256 for one in found if one is not None for file in one.files}

    def _forget_bundles(self) -> None:
        catalog, bundles = self._store.catalog, self._store.bundles
        used = {deployed.revision.bundle for deployed in catalog.every()}
        for digest in bundles.keys() - used:
            del bundles[digest]
