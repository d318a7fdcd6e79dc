"""Contract tests of 10 MB bodies through shared memory, with every driver that runs replicas."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.data_links import Delivered
from gateway.delivery import Delivery
from gateway.dispatch.call import Stage as CallStage
from gateway.shared_memory import SharedLink
from pool_manager.core import events
from registry.exchange import ReplicaEndpoint
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.meta import RequestMeta
from tests.support.peers import KEY, Client, ListeningManager, delivering, published
from tests.support.replicas import Stage, binding
from tests.support.scenes import Scenes

pytestmark = pytest.mark.slow

NPY = RequestMeta("application/x-npy", "application/x-npy", -1, "")
ROWS = 10 * 2**20 // 16
NUMBERS = np.random.default_rng(0).random((ROWS, 4), np.float32)
KEEPS = """
kept = []

def predict(inputs, ctx):
    kept.append(inputs["x"])
    return {"y": kept[0]}
"""


def npy(numbers: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, numbers)
    return file.getvalue()


BODY, ANSWER = npy(NUMBERS), npy(NUMBERS + np.float32(1))


def listed(stage: Stage, id: str) -> bytes:
    """Return the endpoints message for a ready replica."""
    path = str(stage.launcher.folders.data_socket(id))
    return published(ReplicaEndpoint(id, path, 2, True, ("cpu:0",), {}))


async def answer(delivery: Delivery, act: Callable[[], Any], body: bytes = BODY) -> bytes | None:
    """Hold a call with its body in a slab, run `act`, and return the answer; the slot must be free
    afterwards."""
    client = Client()
    slot = delivery.slabs.allocate(KEY, len(body))
    assert slot is not None
    slot.view[:] = body
    slot.mark_filled()
    delivery.submit(client.call(slot.view.toreadonly(), slot=slot, meta=NPY))  # type: ignore[arg-type]  # a body is any bytes
    await act()
    outcome = await client.outcomes.get()
    slot.release()
    async with asyncio.timeout(60):
        while slot._references:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0)
    assert isinstance(outcome, Delivered), outcome
    return bytes(outcome.body)


async def nothing() -> None:
    """Do nothing: a replica is ready."""


def shared(delivery: Delivery) -> SharedLink:
    """Return the only link with a side channel."""
    [link] = delivery.slabs.links
    assert isinstance(link, SharedLink)
    return link


async def test_a_large_body_and_a_large_answer_are_exact(real: Scenes) -> None:
    """Held while cold and then warm, body and answer are exact and pass through shared memory."""
    stage = await real.ready("aaaa0001")
    async with delivering(ListeningManager()) as delivery:

        async def appear() -> None:
            delivery.receive_endpoints(listed(stage, "aaaa0001"))

        assert await answer(delivery, appear) == ANSWER
        for _ in range(3):
            assert await answer(delivery, nothing) == ANSWER
        link = shared(delivery)
        assert (len(link._announced), len(link._answers)) == (1, 1)
        delivery.receive_endpoints(published())


async def test_a_large_body_outlives_a_killed_replica(real: Scenes) -> None:
    """After kill -9 during the run, the next replica reads the same slot."""
    stage = await real.ready("aaaa0001", model="slow.onnx")
    async with delivering(ListeningManager()) as delivery:
        delivery.receive_endpoints(listed(stage, "aaaa0001"))

        async def kill_and_replace() -> None:
            await started(delivery)
            for pid in await stage.driver.processes.pids("aaaa0001") or ():
                os.kill(pid, signal.SIGKILL)
            stage.launch("aaaa0002", binding(ModelSpec("digits@1", model="add_one.onnx")))
            await ready(stage, "aaaa0002")
            delivery.receive_endpoints(listed(stage, "aaaa0002"))

        assert await answer(delivery, kill_and_replace) == ANSWER
        delivery.receive_endpoints(published())


async def test_a_handler_may_keep_its_inputs(real: Scenes, bundle: Path) -> None:
    """A handler's inputs are copies: the next body in the slot does not change them."""
    (bundle / "keeps.py").write_text(KEEPS)
    rules = {"x": InputRule("tensor", dtype="FP32", shape=(-1, 4))}
    stage = await real.ready("aaaa0001", handler="keeps.py", inputs=rules)
    async with delivering(ListeningManager()) as delivery:
        delivery.receive_endpoints(listed(stage, "aaaa0001"))
        assert await answer(delivery, nothing) == BODY
        assert await answer(delivery, nothing, ANSWER) == BODY
        delivery.receive_endpoints(published())


async def started(delivery: Delivery) -> None:
    """Return when a replica has reported that it runs the call."""
    async with asyncio.timeout(60):
        while True:
            links = delivery._dispatcher.links.values()
            calls = [call for link in links for call in link.in_flight.values()]
            if any(call.stage is CallStage.STARTED for call in calls):
                return
            await asyncio.sleep(0)


async def ready(stage: Stage, id: str) -> None:
    """Wait until a replica has loaded, whatever other replicas do."""
    while True:
        event = await stage.events.get()
        if isinstance(event, events.Loaded) and event.id == id:
            return
