"""Tests of a real replica with a prepared model: its quick session is replaced by the fast one
while it serves."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pool_manager.drivers.process import ProcessDriver
from runtime_image.contract.link import Kind
from runtime_image.contract.model import Preparation, SessionPlan
from runtime_image.link.frames import Frame
from tests.support import prepared
from tests.support.replicas import GatewayLink, Stage, binding, pool_settings

ID = "aaaa0001"
FAST = b"fngate: now serving with the fast session\n"
GATE = "gate.onnx"
"""Name of a pipe in place of the fast session's file, so that its build blocks until the test
writes."""
HANDLER = "last_words.py"
LAST_WORDS = """
import atexit

def load(ctx):
    atexit.register(print, "in order", flush=True)

def predict(inputs, ctx):
    return ctx.run(inputs)
"""
"""Handler whose atexit hook shows whether the process ended through Python or at once."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a bundle: a model, its prepared files, and a pipe."""
    folder = tmp_path_factory.mktemp("bundle")
    prepared.prepare(prepared.layers(folder))
    os.mkfifo(folder / GATE)
    (folder / HANDLER).write_text(LAST_WORDS)
    return folder


@pytest.fixture
async def stage(bundle: Path) -> AsyncIterator[Stage]:
    with pool_settings() as settings:
        made = Stage(settings, ProcessDriver(settings.run_dir), bundle)
        yield made
        await made.close()


def outputs(frame: Frame) -> Any:
    assert frame.kind is Kind.RESPONSE, frame
    return np.array(json.loads(frame.body)["outputs"]["y"])


async def with_last_words(stage: Stage, preparation: Preparation) -> GatewayLink:
    """Return a link to a replica with the handler, which has run once."""
    spec = replace(prepared.spec(preparation), handler=HANDLER)
    await stage.ready(ID, binding(spec))
    link = await stage.link(ID)
    outputs(await link.call(1))
    return link


def drain(stage: Stage) -> None:
    control = stage.launcher.control(ID)
    assert control is not None
    control.drain(None)


async def test_no_request_notices_the_exchange(stage: Stage) -> None:
    """Under a stream of requests the fast session takes over, and every answer is right."""
    await stage.ready(ID, binding(prepared.spec(prepared.preparation())))
    link = await stage.link(ID)
    first = outputs(await link.call(1))
    fast = asyncio.ensure_future(stage.output("digits", FAST))

    answers, id = [], 1
    while not fast.done() or len(answers) < 100:
        id += 1
        answers.append(outputs(await link.call(id)))

    await fast
    last = outputs(await link.call(id + 1))
    assert all(np.allclose(first, answer, atol=1e-4) for answer in [*answers, last])
    assert stage.exits == []
    await link.close()


async def test_an_idle_replica_improves_too(stage: Stage) -> None:
    """An idle replica, warmed ahead, has its fast session before its first request."""
    await stage.ready(ID, binding(prepared.spec(prepared.preparation())))

    await stage.output("digits", FAST)

    link = await stage.link(ID)
    assert outputs(await link.call(1)).shape == (1, 4)
    await link.close()


@pytest.mark.parametrize(
    ("preparation", "reason"),
    [
        (prepared.preparation("onnx-0.1/cpu-x86_64-0"), b"the prepared files are for onnx-0.1/"),
        (Preparation(prepared.preparation().key, SessionPlan("no.onnx")), b"no.onnx"),
    ],
)
async def test_unusable_prepared_files_are_ignored(
    stage: Stage, preparation: Preparation, reason: bytes
) -> None:
    """Files prepared for another engine, or incomplete ones, are ignored with one line in the log,
    and the original model is loaded."""
    await stage.ready(ID, binding(prepared.spec(preparation)))
    link = await stage.link(ID)

    assert outputs(await link.call(1)).shape == (1, 4)

    [line] = (await stage.output("digits", b"\n")).splitlines()
    assert line.startswith(b"fngate: digits@1 is loaded from its original file: ")
    assert reason in line
    await link.close()


async def test_a_memory_cap_is_kept(stage: Stage) -> None:
    """If two sessions exceed the memory cap, the quick one stays in use."""
    quick_only = binding(prepared.spec(prepared.preparation()), memory_mib=140)
    await stage.ready(ID, quick_only)
    link = await stage.link(ID)

    output = await stage.output("digits", b" are free\n")

    assert output.startswith(
        b"fngate: still serving with the quick session: the fast session needs "
    )
    assert outputs(await link.call(1)).shape == (1, 4)
    await link.close()


@pytest.mark.parametrize("how", ["drain", "terminate"])
async def test_an_exit_does_not_wait_for_a_build(stage: Stage, bundle: Path, how: str) -> None:
    """A replica that must end during the build ends at once, without tearing ONNX Runtime down
    under the building thread."""
    link = await with_last_words(stage, prepared.preparation(fast=GATE))

    gate = await asyncio.to_thread(os.open, bundle / GATE, os.O_WRONLY)
    outputs(await link.call(2))
    if how == "terminate":
        await stage.driver.terminate(ID)
    else:
        drain(stage)

    assert await stage.exit(ID) == "exited with code 0"
    assert [output for _, output in await stage.launcher.output.kept("digits")] == [b""]
    os.close(gate)
    await link.close()


async def test_without_a_build_a_replica_ends_in_order(stage: Stage) -> None:
    """Before a build, and without one, a replica ends through Python, with its exit hooks."""
    link = await with_last_words(stage, prepared.preparation())

    drain(stage)

    assert await stage.exit(ID) == "exited with code 0"
    assert [output for _, output in await stage.launcher.output.kept("digits")] == [b"in order\n"]
    await link.close()


async def test_a_trial_keeps_its_session(stage: Stage) -> None:
    """A trial keeps its first session, since that is what it measures, and has no thread but the
    loop and the worker."""
    await stage.ready(ID, binding(prepared.spec(prepared.preparation(fast=GATE))), role="trial")

    [pid] = await stage.driver.processes.pids(ID) or ()
    assert len(os.listdir(f"/proc/{pid}/task")) == 2
