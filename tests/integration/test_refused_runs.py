"""Tests of calls whose function fails: it does not load, dies, hangs or raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import models
from tests.support.fake_driver.driver import FakeDriver
from tests.support.fake_driver.service import Script
from tests.support.server import ServingServer, serving

HANDLER = b"""
import os, signal, threading

def predict(inputs, ctx):
    if inputs.get("do") == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if inputs.get("do") == "hang":
        threading.Event().wait()
    if inputs.get("do") == "raise":
        raise ValueError("no such fruit")
    return {"ok": True}
"""
MANIFEST = """schema = 1
[runtime]
engine = "python"
[input.request]
kind = "json"
[limits]
timeout_s = 1.0
retry = "{retry}"
"""
TURNING = """schema = 1
model = "affine_by_input.onnx"
[batching]
mode = "off"
[limits]
timeout_s = 1.0
[sample]
x = [[300, 0, 0, 0]]
"""
"""Manifest of a model whose input is the number of loop turns; its sample takes milliseconds."""
FAKE = {"m.onnx": b"\x3a\x00"}


def asked(do: str, **more: Any) -> dict[str, Any]:
    """Return a request for the handler."""
    return {"inputs": {"do": do, **more}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server over real replicas of one handler: `auto` is not run again, `always` is."""
    async with serving(tmp_path) as server:
        for retry in ("auto", "always", "never"):
            manifest = MANIFEST.format(retry=retry)
            await server.deploy({"handler.py": HANDLER}, name=retry, manifest=manifest)
        yield server


async def test_a_handler_that_raises_fails_one_request_only(server: ServingServer) -> None:
    """A handler's exception is 500 with its text; the same replica answers the next request."""
    answer = await server.call("auto", asked("raise"))
    replicas = [replica.id for replica in server.bound()]

    assert (answer.status, answer.problem["code"]) == (500, "function_failed")
    assert answer.problem["detail"] == "ValueError: no such fruit (handler.py:10 in predict)"
    assert (await server.call("auto", asked("work"))).status == 200
    assert [replica.id for replica in server.bound()] == replicas


async def test_a_model_that_refuses_values_fails_one_request_only(tmp_path: Path) -> None:
    """An index out of range is 400 with the operator and ONNX Runtime's reason; the same replica
    answers the next request."""
    async with serving(tmp_path) as server:
        await server.deploy(models.fails_on_negative(tmp_path), name="f")
        bad = await server.call("f", {"inputs": {"x": [[-1, 0, 0, 0]]}})
        good = await server.call("f", {"inputs": {"x": [[1, 0, 0, 0]]}})

    assert (bad.status, bad.problem["code"]) == (400, "bad_input")
    assert "the model's Gather" in bad.problem["detail"]
    assert "indices element out of data bounds" in bad.problem["detail"]
    assert good.status == 200


@pytest.mark.slow  # a stuck handler has a grace time of a second
async def test_a_run_that_never_ends_is_ended(server: ServingServer) -> None:
    """A run over its timeout is 504; a handler that cannot be stopped loses its replica, and the
    next call is answered."""
    answer = await server.call("auto", asked("hang"))

    assert (answer.status, answer.problem["code"]) == (504, "execution_timeout")
    assert answer.problem["detail"] == "the run did not end after its timeout of 1 s"
    assert (await server.call("auto", asked("work"))).status == 200


@pytest.mark.slow  # a stuck handler has a grace time of a second
async def test_a_client_that_leaves_a_stuck_run_leaves_nothing_behind(
    server: ServingServer,
) -> None:
    """A stuck run whose client disconnected is ended too, and the next call is answered."""
    call = asyncio.create_task(server.call("auto", asked("hang")))
    await server.until_shown("auto", in_flight=1)
    call.cancel()
    await asyncio.wait([call])

    answer = await server.call("auto", asked("work"))

    assert answer.status == 200
    await server.until_shown("auto", in_flight=0, held=0)


@pytest.mark.slow  # a run takes until its timeout
async def test_a_long_run_of_a_model_is_stopped_without_killing_it(tmp_path: Path) -> None:
    """A model's run over its timeout is stopped between two nodes with 504; the same replica
    answers the next request."""
    model = models.affine_by_input(tmp_path)
    short = {"inputs": {"x": [[1, 0, 0, 0]]}}
    async with serving(tmp_path) as server:
        await server.deploy(model, name="f", manifest=TURNING)
        before = await server.call("f", short)
        ids = [replica.id for replica in server.bound()]
        answer = await server.call("f", {"inputs": {"x": [[8_000_000, 0, 0, 0]]}})
        after = await server.call("f", short)
        replicas = [(replica.id, replica.state) for replica in server.bound()]

    assert (answer.status, answer.problem["code"]) == (504, "execution_timeout")
    assert answer.problem["detail"] == "the run was stopped after its timeout of 1 s"
    assert (before.status, after.status) == (200, 200)
    assert replicas == [(id, "ready") for id in ids]


@pytest.mark.parametrize("retry", ["auto", "never"])
async def test_a_request_that_may_not_run_twice_is_given_up_with_its_replica(
    server: ServingServer, retry: str
) -> None:
    """A request that may not run twice is 502 if its replica died after it had started."""
    answer = await server.call(retry, asked("die"))

    assert (answer.status, answer.problem["code"]) == (502, "replica_died")
    assert answer.problem["detail"] == (
        "the replica died while it ran this request, which may not be run again: it was killed by"
        " SIGKILL"
    )
    assert (await server.call(retry, asked("work"))).status == 200


def died(server: ServingServer) -> dict[str, int]:
    """Return the failures of serving replicas, counted by reason."""
    failures = server.server.manager.counters.counts().failures
    return {reason: count for (when, reason), count in failures.items() if when == "serving"}


@pytest.mark.slow  # four replicas are started
async def test_a_request_that_kills_every_replica_is_poison(server: ServingServer) -> None:
    """A request that kills three replicas is 502, and the same body is refused for a minute without
    a run.

    Other bodies are served, since these deaths do not count against the function.
    """
    first = await server.call("always", asked("die"))
    again = await server.call("always", asked("die"))
    other = await server.call("always", asked("work"))

    assert (first.status, first.problem["code"]) == (502, "poison")
    assert first.problem["detail"] == (
        "3 replicas died while they ran this request: the last one was killed by SIGKILL"
    )
    assert died(server) == {"killed": 3}
    assert (again.status, again.problem["code"]) == (502, "poison")
    assert again.problem["detail"] == "this input killed the model before"
    assert 1 <= int(again.headers["Retry-After"]) <= 60
    assert other.status == 200
    assert (await server.function("always"))["state"] == "warm"


async def test_a_replica_that_dies_once_costs_its_request_nothing(tmp_path: Path) -> None:
    """A request whose replica died is run again on the next one and answered."""
    driver = FakeDriver(Script(crash_at="run", crash_count=2))
    async with serving(tmp_path, driver) as server:
        await server.deploy(FAKE, name="f", manifest='schema = 1\nmodel = "m.onnx"')
        answer = await server.call("f", {"inputs": {}})

    assert answer.status == 200


@pytest.mark.slow  # five loads in a row fail, with 1, 2, 4 and 8 s between them
async def test_a_function_that_fails_to_load_says_why_and_until_when(tmp_path: Path) -> None:
    """A function that fails to load is 503 with cause and next try, and with the last log lines for
    admins."""
    async with serving(tmp_path, FakeDriver()) as server:
        await server.deploy(FAKE, name="f", manifest='schema = 1\nmodel = "m.onnx"')
    async with serving(tmp_path, FakeDriver(Script(refuse_load="no such operator"))) as server:
        first = await server.call("f", {"inputs": {}})
        bearer = f"Bearer {server.token}"
        for_admin = await server.call("f", {"inputs": {}}, Authorization=bearer)
        ready = (await server.readiness()).json()
        shown = await server.function("f")

    assert (first.status, first.problem["code"]) == (503, "function_failing")
    assert first.problem["detail"] == "the function fails to load: no such operator"
    assert 1 <= int(first.headers["Retry-After"]) <= 16
    assert "log_tail" not in first.problem
    assert for_admin.status == 503
    assert any("may have any MiB" in line for line in for_admin.problem["log_tail"])
    assert ready == {"status": "degraded", "reasons": ["function f@1 fails to load"]}
    assert (shown["state"], shown["reason"]) == ("failing", "no such operator")
