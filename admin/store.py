"""Opens all durable state of a server."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.pages.cookies import SECRET_BYTES
from registry.bundles.blobs import BlobStore
from registry.catalog import Catalog
from registry.files import DataDirectory, write_atomic
from registry.model.bundles import Bundle
from registry.settings import StoreSettings
from registry.store.ballast import Ballast
from registry.store.builds import BuildStore
from registry.store.database import Database
from registry.store.device_time import DeviceTimes
from registry.store.functions import Functions
from registry.store.history import History
from registry.store.hosts import HostStore
from registry.store.keys import KeyRing, Keys, Revocations
from registry.store.locks import LockStore
from registry.store.openness import OpennessStore
from registry.store.operations import Operations, Traffic
from registry.store.recovery.backups import Backups
from registry.store.recovery.folder import check_folder, enter, explained, keep_earlier_schema
from registry.store.recovery.restoring import remove_partial
from registry.store.sealing import KeyFile
from registry.store.secrets import SecretStore
from registry.store.timeline import Timeline
from registry.store.usage import UsageStore
from registry.tasks import Tasks
from registry.upstream_keys import UpstreamKeys

TOKEN_FILE = "admin.token"  # noqa: S105 - a file's name
COOKIE_FILE = "cookie.key"


@dataclass(frozen=True, slots=True)
class Store:
    """All durable state, with the parts that are cached in memory.

    `id` is that of the database, which no other store has. `epoch` rises with each opening, and by
    EPOCHS with each restore.
    `bundles` holds the bundle of every revision in the catalog, by digest. Unused blobs are
    removed from `sweeps_from_s` on (Unix seconds). `tasks` owns the flushers of history and usage,
    the daily backups, the ballast and late revocations. `cookie_secret` signs the cookies of
    functions' pages.
    """

    id: str
    epoch: int
    settings: StoreSettings
    functions: Functions
    traffic: Traffic
    operations: Operations
    keys: Keys
    revocations: Revocations
    secrets: SecretStore
    hosts: HostStore
    history: History
    timeline: Timeline
    device_times: DeviceTimes
    usage: UsageStore
    blobs: BlobStore
    builds: BuildStore
    locks: LockStore
    catalog: Catalog
    ring: KeyRing
    upstream_keys: UpstreamKeys
    bundles: dict[str, Bundle]
    openness: OpennessStore
    cookie_secret: bytes
    backups: Backups
    tasks: Tasks
    sweeps_from_s: float

    def reasons(self) -> list[str]:
        """Return the reasons for `/readyz` to report the server as degraded."""
        return [*self.backups.reasons(), *self.revocations.reasons()]


async def open_store(settings: StoreSettings, stack: AsyncExitStack) -> Store:
    """Open the data folder for this server alone; `stack` closes all that was opened.

    Raises Conflict if another server uses the folder, StoreUnavailable for a broken database or one
    that does not belong to the folder.
    """
    stack.callback(DataDirectory.open(settings.data).close)
    found = await asyncio.to_thread(check_folder, settings)
    wall = time.time  # noqa: TID251 - the shell passes the clock in
    with explained(settings):
        await asyncio.to_thread(keep_earlier_schema, settings, found)
        ballast = Ballast(settings.ballast, settings.ballast_bytes)
        database = await Database.open(settings.database, busy_s=settings.busy_s, ballast=ballast)
        stack.push_async_callback(database.close)
        functions = Functions(database, profiles_max=settings.profiles_max)
        keys = Keys(database)
        deployed = await functions.load_all()
        bundles = await functions.load_bundles()
        openness = OpennessStore(database)
        ring = await _open_ring(settings, keys, openness)
        hosts = await HostStore.open(database)
        blobs = _open_blobs(settings)
        builds = await BuildStore.open(database, blobs.is_stored)
        identity = await enter(database, settings, wall())
    remove_partial(settings)
    history, backups = History(database, settings, wall), Backups(settings, database, wall)
    tasks = Tasks("store")
    stack.push_async_callback(tasks.close)
    await stack.enter_async_context(history.running(tasks))
    usage = UsageStore(database, settings, wall)
    await stack.enter_async_context(usage.running(tasks))
    await stack.enter_async_context(backups.running(tasks))
    revocations = Revocations(keys, ring)
    tasks.root("revocations", revocations.keep_storing())
    tasks.root("ballast", ballast.keep())
    return Store(
        id=identity.id,
        epoch=identity.opened,
        settings=settings,
        functions=functions,
        traffic=Traffic(database),
        operations=Operations(database, ended_max=settings.operations_max),
        keys=keys,
        revocations=revocations,
        secrets=SecretStore(database, KeyFile.of(settings)),
        hosts=hosts,
        history=history,
        timeline=Timeline(database),
        device_times=DeviceTimes(database),
        usage=usage,
        blobs=blobs,
        builds=builds,
        locks=LockStore(database),
        catalog=Catalog(deployed),
        ring=ring,
        upstream_keys=UpstreamKeys(),
        bundles=bundles,
        openness=openness,
        cookie_secret=cookie_secret(settings.data),
        backups=backups,
        tasks=tasks,
        sweeps_from_s=identity.sweeps_from_s,
    )


def _open_blobs(settings: StoreSettings) -> BlobStore:
    """Open the blobs. Uploads leave room for the ballast, and for what it is given up for."""
    free_min = 2 * settings.ballast_bytes
    return BlobStore(settings.blobs, settings.blob_max_bytes, settings.uploads_max, free_min)


async def _open_ring(settings: StoreSettings, keys: Keys, openness: OpennessStore) -> KeyRing:
    decision = await openness.load()
    return KeyRing(await keys.list(), admin_token(settings.data), decision.openness)


def admin_token(data: Path) -> str:
    """Return the token in DATA/admin.token, created at the first start; mode 0600."""
    path = data / TOKEN_FILE
    if path.exists():
        path.chmod(0o600)
        # An empty file, as a full disk may leave one, must not make "" the token.
        if token := path.read_text().strip():
            return token
    return replace_admin_token(data)


def replace_admin_token(data: Path) -> str:
    """Write a new token to DATA/admin.token, durably, and return it. Raises StoreUnavailable."""
    token = f"fn_{secrets.token_urlsafe(32)}"
    write_atomic(data / TOKEN_FILE, f"{token}\n".encode(), mode=0o600)
    return token


def cookie_secret(data: Path) -> bytes:
    """Return the secret in DATA/cookie.key, created at the first start; mode 0600.

    A new file ends all cookies: remove it and start the server again.
    """
    path = data / COOKIE_FILE
    if path.exists():
        path.chmod(0o600)
        found = path.read_bytes()
        # Anything else is what a full disk has left, and a short secret could be guessed.
        if len(found) == SECRET_BYTES:
            return found
    found = secrets.token_bytes(SECRET_BYTES)
    write_atomic(path, found, mode=0o600)
    return found
