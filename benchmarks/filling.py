"""Fills a store with many functions, each in the state that a deploy leaves."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from admin.store import Store, open_store
from registry.bundles.paths import make_bundle
from registry.catalog import Deployed
from registry.model.bundles import BundleFile
from registry.model.functions import Scaling
from registry.model.profiles import Profile
from registry.settings import StoreSettings

AT_ONCE = 8
IDLE_S = 0.05


def name(number: int) -> str:
    """Return the name of a generated function."""
    return f"copy-of-digits-{number:05d}"


def fill(data: Path, count: int) -> None:
    """Add `count` functions to the data folder of a stopped server.

    Each has a separate bundle, revision and profile, copied from the function "digits", which must
    exist; an additional small file makes all bundles different.
    """
    asyncio.run(_fill(data, count))


async def _fill(data: Path, count: int) -> None:
    async with AsyncExitStack() as stack:
        store = await open_store(StoreSettings(data), stack)
        digits = store.catalog.resolve("digits")
        turns = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(_copy(store, digits, name(number), turns))


async def _copy(store: Store, digits: Deployed, copy: str, turns: asyncio.Semaphore) -> None:
    assert digits.profile is not None
    async with turns:
        content = f"{copy}\n".encode()
        about = BundleFile("about.txt", len(content), hashlib.sha256(content).hexdigest())
        async with store.blobs.receive(about.sha256, about.size) as upload:
            await upload.write(content)
        bundle = make_bundle([*store.bundles[digits.revision.bundle].files, about])
        now_s = time.time()
        await store.functions.deploy(
            replace(digits.function, name=copy, scaling=Scaling(idle_s=IDLE_S), created_s=now_s),
            replace(digits.revision, name=copy, number=0, bundle=bundle.digest, created_s=now_s),
            bundle,
            _measured_again(digits.profile, bundle.digest),
        )


def _measured_again(profile: Profile, bundle: str) -> Profile:
    """Vary the figures as a repeated measurement of the model would, so that no two are equal."""
    latency_ms = {rows: ms * random.uniform(0.9, 1.1) for rows, ms in profile.latency_ms.items()}
    load_ms = profile.load_ms * random.uniform(0.9, 1.1)
    return replace(profile, bundle=bundle, latency_ms=latency_ms, load_ms=load_ms)
