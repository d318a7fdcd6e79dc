"""Reading of the keys that functions' servers get at /v1, for all gateway processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from admin.store import Store
from registry.catalog import Change, Deployed
from registry.errors import Conflict, FnError, Unknown
from registry.model.revisions import Revision
from registry.model.servers import ServerSettings
from registry.tasks import Tasks, every
from registry.upstream_keys import UpstreamKey, key_of

log = structlog.get_logger()

AGAIN_S: Final = 10.0
"""Seconds after which keys that cannot be read are tried again: their key file may be back."""
_Secret = tuple[str, str]
"""Namespace and name."""


def upstream_secret(server: ServerSettings | None) -> str:
    """Return the name of the secret that a server gets as its key at /v1, "" for none."""
    return "" if server is None or server.api is None else server.api.upstream_key


class UpstreamKeyReader:
    """Keeps `store.upstream_keys` as the catalog and the secrets are.

    The order is such that a gateway has a key before the revision that names it: `held` reads it,
    and the catalog gets the revision within that block.
    """

    def __init__(self, store: Store) -> None:
        self._secrets = store.secrets
        self._keys = store.upstream_keys
        self._catalog = store.catalog
        self._named: dict[tuple[str, str], frozenset[_Secret]] = {}
        self._held: Counter[_Secret] = Counter()
        self._reading = asyncio.Lock()
        self._tasks = Tasks("upstream keys")
        self._unsubscribe = store.catalog.subscribe(self._on_change)

    async def open(self) -> None:
        """Read all keys. One that cannot be read has a problem, with which calls are refused."""
        for one in self._catalog.every():
            key = (one.function.namespace, one.function.name)
            self._name(key, self._named.get(key, frozenset()) | _named_by([one]))
        for secret in sorted(set().union(*self._named.values())):
            try:
                await self._read(secret)
            except FnError as error:
                self._keys.put(_broken(secret, error))
        self._tasks.root("unreadable keys", every(AGAIN_S, self._try_again))

    async def close(self) -> None:
        """Stop following the catalog."""
        self._unsubscribe()
        await self._tasks.close()

    @asynccontextmanager
    async def held(self, revision: Revision) -> AsyncIterator[None]:
        """Have the key of a revision within the block, which adds the revision to the catalog.
        Raises StoreUnavailable."""
        name = upstream_secret(revision.server)
        if not name:
            yield
            return
        secret = (revision.namespace, name)
        self._held[secret] += 1
        try:
            await self._read(secret)
            yield
        finally:
            self._held[secret] -= 1
            if not self._held[secret]:
                del self._held[secret]
            self._forget([secret])

    async def refresh(self, name: str, namespace: str) -> None:
        """Read a secret that has been set or removed, if a function names it as its key. Raises
        StoreUnavailable."""
        await self._read((namespace, name))

    async def _read(self, secret: _Secret) -> None:
        """Read a secret. One at a time, so that the last one to read has the newest value."""
        async with self._reading:
            if not self._is_wanted(secret):
                return
            key = await self._value(secret)
            if self._is_wanted(secret):
                self._keys.put(key)

    async def _value(self, secret: _Secret) -> UpstreamKey:
        namespace, name = secret
        try:
            found = await self._secrets.values({name}, namespace)
        except (Unknown, Conflict) as error:
            return _broken(secret, error)
        return key_of(name, found[name], namespace)

    def _on_change(self, change: Change) -> None:
        """Forget the keys that a function named and that none names any more."""
        key = (change.namespace, change.name)
        before = self._named.get(key, frozenset())
        self._name(key, _named_by(self._catalog.revisions(change.name, change.namespace)))
        self._forget(before)

    def _name(self, key: tuple[str, str], secrets: frozenset[_Secret]) -> None:
        self._named.pop(key, None)
        if secrets:
            self._named[key] = secrets

    def _forget(self, secrets: Iterable[_Secret]) -> None:
        for secret in secrets:
            if not self._is_wanted(secret):
                self._keys.remove(secret[1], secret[0])

    def _is_wanted(self, secret: _Secret) -> bool:
        return self._held[secret] > 0 or any(secret in one for one in self._named.values())

    def _try_again(self) -> None:
        if not self._reading.locked() and any(one.problem for one in self._keys.all()):
            self._tasks.spawn("read unreadable keys", self._read_broken())

    async def _read_broken(self) -> None:
        for one in self._keys.all():
            if one.problem:
                try:
                    await self._read((one.namespace, one.secret))
                except FnError as error:
                    log.warning("a key is not read", secret=one.secret, reason=error.message)


def _named_by(revisions: Iterable[Deployed]) -> frozenset[_Secret]:
    found = ((one.revision.namespace, upstream_secret(one.revision.server)) for one in revisions)
    return frozenset(secret for secret in found if secret[1])


def _broken(secret: _Secret, error: FnError) -> UpstreamKey:
    return UpstreamKey(secret[1], problem=error.message, namespace=secret[0])
