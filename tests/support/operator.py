"""The operator's side without HTTP: store, pool manager and deploys over fake replicas."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from admin.deploy.compiled_models import CompiledModels
from admin.deploy.deploys import Deploys, Settled, at_once
from admin.deploy.image_rules import ImageRules
from admin.documents.requests import BundleEntry, DeployRequest
from admin.history import Prior, ServerHistory
from admin.pool_sync import PoolSync
from admin.settings import Settings
from admin.store import Store, open_store
from gateway.admission.access import Caller
from pool_manager.devices import cpu_slots
from pool_manager.driver import Driver
from pool_manager.manager import Manager
from pool_manager.ports import Bundles, Gpus
from registry.bundles.blobs import BlobStore
from registry.exchange import Demand, encode
from registry.model.bundles import Bundle, BundleFile
from registry.model.operations import Operation
from registry.settings import StoreSettings
from tests.support.fake_driver.driver import FakeDriver
from tests.support.nouns import sha256

MODEL = b"\x3a\x00"
"""An ONNX file with an empty graph; sufficient for fake replicas."""
IDLE_S = 77.0
"""Idle time in seconds of functions that set none."""
UNTIL_S = 90.0
SLOTS = 2


@dataclass(frozen=True)
class Operator:
    """Store, pool manager and deploys of one server."""

    store: Store
    manager: Manager
    deploys: Deploys
    pool_sync: PoolSync
    models: CompiledModels

    async def request(
        self, files: Mapping[str, bytes] | None = None, **fields: Any
    ) -> DeployRequest:
        """Upload `files`, by default one small model; return a deploy request for them."""
        contents = {"m.onnx": MODEL} if files is None else files
        listed = []
        for path, content in contents.items():
            digest = sha256(content)
            async with self.store.blobs.receive(digest, len(content)) as upload:
                await upload.write(content)
            listed.append(BundleEntry(path, len(content), digest))
        return DeployRequest(files=listed, **{"model": next(iter(contents), None), **fields})

    async def start(
        self, name: str, scopes: tuple[str, ...] = ("admin",), party: str = "", **fields: Any
    ) -> Operation:
        """Start a deploy of a key that is accepted and running."""
        caller = Caller(party, scopes)
        return await self.deploys.start(name, await self.request(**fields), caller)

    async def deploy(self, name: str, **fields: Any) -> Operation:
        """Deploy and wait for the end."""
        return await self.ended((await self.start(name, **fields)).id)

    async def ended(self, id: str) -> Operation:
        """Wait for the end of an operation; return it."""
        operation = await self.deploys.runner.get(id)
        async with asyncio.timeout(UNTIL_S):
            while operation.state == "running":
                operation = await self.deploys.runner.wait(id, operation.phase, UNTIL_S)
        return operation

    async def reached(self, id: str, phase: str) -> None:
        """Wait until a running operation is in that phase."""
        operation = await self.deploys.runner.get(id)
        async with asyncio.timeout(UNTIL_S):
            while operation.phase != phase:
                assert operation.state == "running", operation
                operation = await self.deploys.runner.wait(id, operation.phase, UNTIL_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that needs a few turns of the loop and its threads."""
    async with asyncio.timeout(UNTIL_S):
        while not condition():
            await asyncio.to_thread(lambda: None)


class _Linked(Bundles):
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        self._blobs.materialise(bundle, target, prepared)

    async def add(self, files: Collection[BundleFile], target: Path) -> None:
        self._blobs.add(files, target)

    def path(self, sha256: str) -> Path:
        return self._blobs.path(sha256)

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        async with self._blobs.take(size) as upload:
            async for part in parts:
                await upload.write(part)
        return upload.sha256


@asynccontextmanager
async def operating(
    folder: Path,
    driver: Driver | None = None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    gpus: Gpus | None = None,
    settled: Settled = at_once,
    rules: ImageRules | None = None,
    memory_mib: float = 0.0,
    **settings: Any,
) -> AsyncIterator[Operator]:
    """Open everything over `folder`. `memory_mib` is that of the CPU slots together, 0 for any.
    `settings` are the store's. Locks are not waited for."""
    async with AsyncExitStack() as stack:
        data = folder / "data"
        store = await open_store(StoreSettings(data, **{"busy_s": 0.0, **settings}), stack)
        past = ServerHistory(store.history, time.time, lambda _: Prior(), store.usage.add)
        pool = Settings(data=data, standbys=0).pool()
        devices = cpu_slots(SLOTS, memory_mib)
        manager = Manager(pool, driver or FakeDriver(), devices, _Linked(store.blobs), past, gpus)
        stack.push_async_callback(manager.close)
        models = CompiledModels(store.builds, "onnxruntime")
        pool_sync = PoolSync(store.catalog, manager, store.bundles.__getitem__, models.of)
        stack.callback(pool_sync.close)
        await manager.start()
        manager.receive_demand(encode(Demand("test", 1, True, {})))
        deploys = Deploys(
            store,
            manager,
            idle_s=IDLE_S,
            wall=time.time,
            pause=pause,
            settled=settled,
            models=models,
            rules=rules or ImageRules(),
        )
        stack.push_async_callback(deploys.close)
        await deploys.resume()
        yield Operator(store, manager, deploys, pool_sync, models)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold a write lock on the store while the block runs, as another process would."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=UNTIL_S)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()
