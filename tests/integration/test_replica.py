"""Tests of a real replica process with real models, from launch to exit."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.drivers.process import ProcessDriver
from runtime_image.contract.link import VERSION, Kind, NotStarted
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.frames import Frame, pack
from runtime_image.link.meta import unpack_answer
from tests.support import models
from tests.support.replicas import KEY, NO_BUNDLE, ROW, Stage, binding, ids, pool_settings

ENDLESS = 100_000_000
"""Turns of the slow model that take some twenty minutes, so that only a stop ends the run."""
ID = "aaaa0001"
JSON_RULES = {"x": InputRule("json")}
NEGATIVE = b'{"inputs": {"x": [[-1, 2, 3, 4]]}}'
GATE = "gate"
DOOR = "door"
"""Pipes in the model folder: a handler that reads one blocks until a test opens it for writing."""
HANDLERS = {
    "waits_in_run.py": f"""
def predict(inputs, ctx):
    (ctx.folder / "{GATE}").read_bytes()
    return {{}}
""",
    "waits_in_load.py": f"""
def load(ctx):
    (ctx.folder / "{DOOR}").read_bytes()
    (ctx.folder / "{GATE}").read_bytes()

def predict(inputs, ctx):
    return {{}}
""",
    "tells_modules.py": """
import sys

def load(ctx):
    print(" ".join(sorted(sys.modules)), flush=True)

def predict(inputs, ctx):
    return ctx.run(inputs)
""",
    "gives_up.py": """
def predict(inputs, ctx):
    raise KeyboardInterrupt
""",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with every model and handler of these tests."""
    folder = tmp_path_factory.mktemp("bundle")
    for build in (
        models.add_one,
        models.softmax_over_batch,
        models.fixed_batch,
        models.fails_on_negative,
    ):
        build(folder)
    models.slow(folder, ENDLESS)
    for name, text in HANDLERS.items():
        (folder / name).write_text(text)
    for pipe in (GATE, DOOR):
        os.mkfifo(folder / pipe)
    return folder


@pytest.fixture
async def stage(bundle: Path) -> AsyncIterator[Stage]:
    with pool_settings(orphan_s=0.01) as settings:
        made = Stage(settings, ProcessDriver(settings.run_dir), bundle)
        yield made
        await made.close()


async def serve(stage: Stage, **spec: Any) -> events.Loaded:
    return await stage.ready(ID, binding(ModelSpec("digits@1", **spec)))


async def report(stage: Stage, **spec: Any) -> dict[str, Any]:
    bound = binding(ModelSpec("digits@1", **spec))
    return (await stage.ready(ID, bound, role="trial")).report


async def let_go(pipe: Path) -> None:
    """Unblock the reader of the pipe; wait until there is one."""
    os.close(await asyncio.to_thread(os.open, pipe, os.O_WRONLY))


async def settle(link: Any) -> None:
    """Wait until the replica has read everything sent on this link."""
    link.send(pack(Kind.HELLO, aux=VERSION))
    await link.next(Kind.HELLO)


def failure(frame: Frame) -> str:
    assert frame.kind is Kind.FAILED
    return str(json.loads(frame.body)["code"])


async def test_batching_is_proved(stage: Stage) -> None:
    """A model with independent rows is batchable and is timed by batch size."""
    found = await report(stage, model="add_one.onnx")

    assert (found["batchable"], found["why_not"]) == (True, "")
    assert found["batch_max"] > 1
    assert found["signature"]["inputs"] == [{"name": "x", "dtype": "FP32", "shape": [-1, 4]}]
    assert {"1", "2", "4"} <= set(found["latency_ms"])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("softmax_over_batch.onnx", "Softmax (node 'y') normalises along"),
        ("fixed_batch.onnx", "the first axis of x, y is not dynamic"),
    ],
)
async def test_batching_is_refused(stage: Stage, model: str, reason: str) -> None:
    """A model with dependent rows is not batched, and the report has the reason."""
    found = await report(stage, model=model)

    assert not found["batchable"]
    assert reason in found["why_not"]
    assert (found["batch_max"], list(found["latency_ms"])) == (1, ["1"])


async def test_a_run_out_of_time_fails(stage: Stage) -> None:
    """A run over its timeout is stopped and answered; the replica takes the next request."""
    await serve(stage, model="slow.onnx")
    link = await stage.link(ID)

    first = await link.call(1, timeout_s=0.2)
    second = await link.call(2, timeout_s=0.2)

    assert [failure(first), failure(second)] == ["execution_timeout", "execution_timeout"]
    assert stage.exits == []
    await link.close()


async def test_a_run_that_does_not_stop_ends_the_replica(stage: Stage) -> None:
    """If a run cannot be stopped, its request is answered, waiting ones are handed back, and the
    replica exits."""
    await serve(stage, handler="waits_in_run.py", inputs=JSON_RULES)
    link = await stage.link(ID)
    link.request(1, timeout_s=0.05)
    link.request(2)

    answers = await link.answers(2)

    assert failure(answers[1]) == "execution_timeout"
    assert (answers[2].kind, answers[2].aux) == (Kind.NOT_STARTED, NotStarted.DRAINING)
    assert await stage.exit(ID) == "exited with code 75"
    await link.close()


async def test_only_the_bad_request_of_a_batch_fails(stage: Stage) -> None:
    """In a batch, a row that the model rejects fails only its own request."""
    await serve(stage, model="fails_on_negative.onnx", batch_max=4)
    link = await stage.link(ID)

    for id, body in enumerate([ROW, NEGATIVE, ROW], start=1):
        link.request(id, body)
    answers = await link.answers(3)

    assert failure(answers[2]) == "bad_input"
    assert [answers[1].kind, answers[3].kind] == [Kind.RESPONSE, Kind.RESPONSE]
    assert json.loads(answers[3].body)["outputs"] == {"y": [[2, 3, 4, 5]]}
    await link.close()


async def test_requests_are_batched(stage: Stage) -> None:
    """Requests that arrive together run as a batch, and each gets its own rows back."""
    await serve(stage, model="add_one.onnx", batch_max=4)
    link = await stage.link(ID)

    for id in range(1, 5):
        link.request(id, json.dumps({"inputs": {"x": [[id] * 4]}}).encode())
    answers = await link.answers(4)

    outputs = {id: json.loads(frame.body)["outputs"]["y"] for id, frame in answers.items()}
    assert outputs == {id: [[id + 1] * 4] for id in range(1, 5)}
    assert {unpack_answer(frame.meta).rows for frame in answers.values()} == {4}
    await link.close()


async def test_a_request_sent_alone_is_marked(stage: Stage) -> None:
    """A request sent alone is marked as started and has no batch mates, even if runs are too short
    to be marked otherwise."""
    loaded = await serve(stage, model="add_one.onnx", batch_max=4, inline=True)
    link = await stage.link(ID)

    link.request(1)
    link.request(2, alone=True)
    link.request(3)
    started = await link.frames.get()
    frames = [started, *[await link.frames.get() for _ in range(3)]]

    assert not loaded.marks_started
    assert [frame.kind for frame in frames].count(Kind.STARTED) == 1
    assert ids(next(frame for frame in frames if frame.kind is Kind.STARTED)) == [2]
    rows = [unpack_answer(frame.meta).rows for frame in frames if frame.kind is Kind.RESPONSE]
    assert rows == [1, 1, 1]
    await link.close()


async def test_the_limit_is_kept(stage: Stage, bundle: Path) -> None:
    """A request over the limit is handed back at once, and a WINDOW frame reports when there is
    room."""
    loaded = await serve(stage, handler="waits_in_run.py", inputs=JSON_RULES)
    link = await stage.link(ID)

    for id in (1, 2, 3):
        link.request(id)
    refused = await link.next(Kind.NOT_STARTED)
    await let_go(bundle / GATE)
    news = [await link.next(Kind.RESPONSE, Kind.WINDOW) for _ in range(2)]
    link.request(4)
    await let_go(bundle / GATE)
    second = await link.next(Kind.RESPONSE)
    await let_go(bundle / GATE)
    last = await link.next(Kind.RESPONSE)

    assert loaded.limit == 2
    assert (refused.id, refused.aux) == (3, NotStarted.FULL)
    assert [frame.kind for frame in news] == [Kind.RESPONSE, Kind.WINDOW]
    assert [news[0].id, second.id, last.id] == [1, 2, 4]
    await link.close()


async def test_termination_finishes_what_runs(stage: Stage, bundle: Path) -> None:
    """TERM hands waiting requests back and lets the running one end; then the replica exits."""
    await serve(stage, handler="waits_in_run.py", inputs=JSON_RULES)
    link = await stage.link(ID)
    link.request(1)
    link.request(2)
    await settle(link)

    await stage.driver.terminate(ID)
    handed_back = [await link.next(Kind.GOAWAY), await link.next(Kind.NOT_STARTED)]
    await let_go(bundle / GATE)
    answer = await link.next(Kind.RESPONSE)

    assert [(frame.id, frame.aux) for frame in handed_back] == [(0, 2), (2, NotStarted.DRAINING)]
    assert answer.id == 1
    assert await stage.exit(ID) == "exited with code 0"
    await link.close()


async def test_a_cancelled_run_is_stopped(stage: Stage) -> None:
    """A cancelled run is stopped, and the replica is free at once."""
    await serve(stage, model="slow.onnx")
    link = await stage.link(ID)
    link.request(1)
    await link.next(Kind.STARTED)

    link.send(pack(Kind.CANCEL, 1))

    assert (await link.next(Kind.CANCELLED)).id == 1
    await link.close()


async def test_a_lost_gateway_frees_the_replica(stage: Stage) -> None:
    """If a gateway's link ends, its run is stopped, and requests of others run."""
    await serve(stage, model="slow.onnx")
    gone, other = await stage.link(ID), await stage.link(ID)
    gone.request(1)
    await gone.next(Kind.STARTED)
    await gone.close()

    other.request(1)

    assert ids(await other.next(Kind.STARTED)) == [1]
    await other.close()


async def test_a_handler_may_raise_anything(stage: Stage) -> None:
    """An exception outside the Exception hierarchy fails its request only."""
    await serve(stage, handler="gives_up.py", inputs=JSON_RULES)
    link = await stage.link(ID)

    answers = [await link.call(1), await link.call(2)]

    assert [failure(answer) for answer in answers] == ["function_failed"] * 2
    await link.close()


async def test_an_orphan_goes(stage: Stage) -> None:
    """A replica exits if its manager does not return within `orphan_s`."""
    await serve(stage, model="add_one.onnx")
    control = stage.launcher.control(ID)
    assert control is not None

    control.close()

    assert await stage.exit(ID) == "exited with code 70"


async def test_a_new_manager_receives_the_whole_state(stage: Stage) -> None:
    """A replica reports its loaded model to a new manager and serves on, without another bind."""
    first = await serve(stage, model="add_one.onnx")
    link = await stage.link(ID)
    replace_manager(stage)

    meanwhile = await link.call(1)
    greeted = await stage.next(events.Greeted)
    loaded = await stage.next(events.Loaded)

    assert meanwhile.kind is Kind.RESPONSE
    assert greeted.loaded
    assert (loaded.limit, loaded.phases) == (first.limit, first.phases)
    assert (await link.call(2)).kind is Kind.RESPONSE
    await link.close()


async def test_a_new_manager_waits_for_the_same_load(stage: Stage, bundle: Path) -> None:
    """A replica that was loading when its manager was replaced loads once, although it is bound
    again."""
    stage.launch(ID, binding(ModelSpec("digits@1", handler="waits_in_load.py", inputs=JSON_RULES)))
    await stage.next(events.Greeted)
    await let_go(bundle / DOOR)
    replace_manager(stage)

    greeted = await stage.next(events.Greeted)
    await let_go(bundle / GATE)
    await stage.next(events.Loaded)
    link = await stage.link(ID)

    assert not greeted.loaded
    assert (await link.call(1)).kind is Kind.RESPONSE
    await link.close()


async def test_a_replica_imports_no_web_framework(stage: Stage) -> None:
    """With a model and a handler loaded, no module that would slow down cold starts is imported."""
    await serve(stage, model="add_one.onnx", handler="tells_modules.py")
    [log] = stage.launcher.folders.logs("digits")
    modules = set(log.read_text().split())

    assert modules.isdisjoint({"aiohttp", "asyncio", "pydantic", "uvloop", "structlog"})
    assert {"onnxruntime", "runtime_image.replica.main"} <= modules


async def test_a_standby_serves(stage: Stage) -> None:
    """A standby that is given a model serves as any other replica."""
    await stage.standby(ID)
    stage.assign(ID, binding(ModelSpec("digits@1", model="add_one.onnx")))
    await stage.next(events.Loaded)
    link = await stage.link(ID)

    answer = await link.call(1)

    assert link.hello == {"revision": "digits@1", "limit": 2}
    assert json.loads(answer.body)["outputs"] == {"y": [[2, 3, 4, 5]]}
    await link.close()


async def test_a_new_manager_finds_a_standby(stage: Stage) -> None:
    """A standby greets a new manager, which gives it a model."""
    await stage.standby(ID)
    replace_manager(stage, "")
    greeted = await stage.next(events.Greeted)

    stage.assign(ID, binding(ModelSpec("digits@1", model="add_one.onnx")))
    await stage.next(events.Loaded)
    link = await stage.link(ID)

    assert not greeted.loaded
    assert (await link.call(1)).kind is Kind.RESPONSE
    await link.close()


async def test_a_new_manager_ends_an_assignment(stage: Stage, bundle: Path) -> None:
    """A new manager sends the bind that the earlier one had recorded but not sent."""
    await stage.standby(ID)
    folders = stage.launcher.folders
    record = folders.read_records()[ID]
    assert record is not None
    await stage.bundles.materialise(NO_BUNDLE, folders.model_dir(ID))
    folders.rewrite(
        replace(record, bound=KEY, role="serve", namespace="default", devices=("cpu:0",))
    )
    stage.expect(ID, binding(ModelSpec("digits@1", model="add_one.onnx")))

    replace_manager(stage)
    loaded = await stage.next(events.Loaded)

    assert {"bind", "load"} == set(loaded.phases)


def replace_manager(stage: Stage, name: str = "digits") -> None:
    """End the control link as a manager's end does, and listen as the next manager does."""
    control = stage.launcher.control(ID)
    assert control is not None
    control.close()
    record = stage.launcher.folders.read_records()[ID]
    assert record is not None
    stage.launcher.adopt(record, name)
