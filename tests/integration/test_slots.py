"""Tests of slots under load: clients leave, replicas are killed, links are cut."""

from __future__ import annotations

import asyncio
import io
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from gateway.data_links import Delivered
from gateway.delivery import Delivery
from pool_manager.drivers.process import ProcessDriver
from registry.exchange import ReplicaEndpoint
from runtime_image.contract.model import ModelSpec
from runtime_image.link.meta import RequestMeta
from tests.support import models
from tests.support.peers import KEY, Client, ListeningManager, delivering, published
from tests.support.replicas import Stage, binding, pool_settings

pytestmark = pytest.mark.slow

NPY = RequestMeta("application/x-npy", "application/x-npy", -1, "")
CALLERS, CALLS = 12, 25
CAPACITY = 16 * 2**20
"""Slab capacity in bytes, too small for all calls, so that some bodies are sent in frames."""
REPLICAS = ("aaaa0001", "aaaa0002")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Two replicas that add one."""
    models.add_one(tmp_path)
    with pool_settings(orphan_s=0.01) as settings:
        made = Stage(settings, ProcessDriver(settings.run_dir), tmp_path)
        for id in REPLICAS:
            await made.ready(id, binding(ModelSpec("digits@1", model="add_one.onnx", batch_max=4)))
        yield made
        await made.close()


def listed(stage: Stage, *ids: str) -> bytes:
    """Encode the manager's message about ready replicas."""
    paths = {id: str(stage.launcher.folders.data_socket(id)) for id in ids}
    return published(*[ReplicaEndpoint(id, p, 8, True, ("cpu:0",), {}) for id, p in paths.items()])


def npy(numbers: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, numbers)
    return file.getvalue()


async def call(delivery: Delivery, number: int, chance: random.Random) -> str:
    """Make one call with a body of its own, and maybe cancel it; return the outcome."""
    rows = np.full((chance.randrange(5_000, 80_000), 4), number, np.float32)
    body = npy(rows)
    slot = delivery.slabs.allocate(KEY, len(body))
    client = Client()
    if slot is None:
        held = client.call(body, meta=NPY)
    else:
        slot.view[:] = body
        slot.mark_filled()
        held = client.call(slot.view.toreadonly(), slot=slot, meta=NPY)  # type: ignore[arg-type]  # a body is any bytes
    delivery.submit(held)
    if chance.random() < 0.2:
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
    if chance.random() < 0.2 and client.outcomes.empty():
        delivery.cancel(held)
        how = "left"
    else:
        outcome = await client.outcomes.get()
        assert isinstance(outcome, Delivered), outcome
        how = "right" if outcome.body == npy(rows + 1) else "wrong"
    if slot is not None:
        slot.release()
    return how


async def test_no_body_reaches_another_call(stage: Stage) -> None:
    """Every answer belongs to its own call while a replica is killed and the other's link is cut;
    afterwards no slot is held."""
    async with delivering(ListeningManager(), bytes_max=CAPACITY) as delivery:
        delivery.receive_endpoints(listed(stage, *REPLICAS))
        told: list[str] = []
        enough = asyncio.Event()

        async def caller(number: int) -> None:
            chance = random.Random(number)
            for at in range(CALLS):
                told.append(await call(delivery, number * CALLS + at, chance))
                if len(told) > CALLERS * CALLS // 3:
                    enough.set()

        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(caller(number))
            await enough.wait()
            delivery._links.abort(REPLICAS[0], "cut by the test")
            for pid in await stage.driver.processes.pids(REPLICAS[1]) or ():
                os.kill(pid, signal.SIGKILL)
        assert {how: told.count(how) > 0 for how in ("right", "left", "wrong")} == {
            "right": True,
            "left": True,
            "wrong": False,
        }
        [slab] = delivery.slabs._live.values()
        async with asyncio.timeout(60):
            while not slab.allocator.is_empty:  # noqa: ASYNC110 - a slab has no event
                await asyncio.sleep(0)
        delivery.receive_endpoints(published())
