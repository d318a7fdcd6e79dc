"""Tests of the operator's work over real HTTP, with real replicas where their answers matter."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.support import models
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.nouns import sha256
from tests.support.operator import MODEL, UNTIL_S, until
from tests.support.server import Answer, Gate, ServingServer, serving

ROW: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}
ANY: dict[str, Any] = {"inputs": {}}
OTHER = {"other.onnx": b"\x3a\x00\x3a\x00"}
HANDLER = b"""
def predict(inputs, ctx):
    print("asked for", len(inputs["n"]))
    return {"n": inputs["n"] * 2}
"""
DOUBLES = 'schema = 1\n[runtime]\nengine = "python"\n[input.n]\ndtype = "INT64"\nshape = [-1]\n'


async def post(server: ServingServer, name: str, content: bytes, **fields: Any) -> Answer:
    """Upload one model and request its deploy, without waiting for it."""
    digest = sha256(content)
    assert (await server.admin("PUT", f"/blobs/{digest}", content)).status == 201
    listed = [{"path": "m.onnx", "size": len(content), "sha256": digest}]
    request = {"files": listed, "model": "m.onnx", **fields}
    return await server.admin("POST", f"/functions/{name}/revisions", request)


async def receipts(server: ServingServer, name: str) -> list[dict[str, Any]]:
    """Return a function's cold starts once there is one: a receipt is recorded after the answer."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(UNTIL_S):
        while not found:
            await server.server.store.history.flush()
            found = (await server.admin("GET", f"/functions/{name}/why")).json()["cold_starts"]
    return found


@pytest.mark.slow
async def test_a_bad_model_changes_nothing(tmp_path: Path) -> None:
    """A model that fails to load is refused with the replica's reason, and the earlier revision
    still answers."""
    async with serving(tmp_path) as server:
        await server.deploy(models.add_one(tmp_path), name="sum")
        bad = models.unsupported_opset(tmp_path)

        operation = (await server.try_deploy(bad, name="sum")).json()

        assert (operation["state"], operation["error"]["code"]) == ("failed", "model_refused")
        assert "9999" in operation["error"]["detail"]
        answer = await server.call("sum", ROW)
        assert answer.json() == {"outputs": {"y": [[2, 3, 4, 5]]}, "revision": "sum@1"}
        assert [one["number"] for one in (await server.function("sum"))["revisions"]] == [1]


@pytest.mark.slow
async def test_changed_batching_is_a_new_revision_and_changed_scaling_is_not(
    tmp_path: Path,
) -> None:
    """Changed batching makes a new revision, since proof and measurements belong to it; changed
    scaling does not."""
    async with serving(tmp_path) as server:
        model = models.add_one(tmp_path)
        first = await server.deploy(model, name="sum")
        assert first["profile"]["batchable"]

        scaled = await server.deploy(model, name="sum", idle_s=5, max=2)
        assert (scaled["revision"], scaled["created"]) == ("sum@1", False)
        shown = await server.function("sum")
        assert (shown["idle_s"], shown["max"]) == (5, 2)

        off = 'schema = 1\n[batching]\nmode = "off"\n'
        batched = await server.deploy(model, name="sum", manifest=off)
        assert (batched["revision"], batched["created"]) == ("sum@2", True)
        assert (first["batch_max"] > 1, batched["batch_max"]) == (True, 1)
        # The same figures show that nothing was measured a second time.
        assert batched["profile"] == first["profile"]


@pytest.mark.slow
async def test_a_handler_needs_trust_and_its_output_is_in_the_logs(tmp_path: Path) -> None:
    """A handler is refused without --trust; with it, its output is in the logs and its decisions in
    why."""
    async with serving(tmp_path) as server:
        files = {"handler.py": HANDLER, "function.toml": DOUBLES.encode()}
        digest = sha256(HANDLER)
        request = {"files": [{"path": "handler.py", "size": len(HANDLER), "sha256": digest}]}
        refused = await server.admin(
            "POST", "/functions/doubles/revisions", {**request, "manifest": DOUBLES}
        )
        assert (refused.status, refused.problem["code"]) == (422, "refused")
        assert "--trust" in refused.problem["detail"]

        await server.deploy(files, name="doubles")
        answer = await server.call("doubles", {"inputs": {"n": [1, 2]}})

        assert answer.json()["outputs"] == {"n": [2, 4]}
        logs = (await server.admin("GET", "/functions/doubles/logs")).json()["items"]
        assert any("asked for 2" in one["text"] for one in logs)
        (receipt,) = await receipts(server, "doubles")
        phases = receipt["phases"]
        assert {"place", "start", "import", "bind", "load", "first_run"} <= phases.keys()


async def test_what_is_wrong_with_a_request_is_told_at_once(tmp_path: Path) -> None:
    """A bad manifest is 422 and a taken derived name 409, both before an operation exists."""
    async with serving(tmp_path, FakeDriver()) as server:
        bad = await post(server, "f", MODEL, manifest="schema = 1\n[scaling]\nmni = 1\n")
        assert (bad.status, bad.problem["code"]) == (422, "bad_manifest")
        assert "scaling.mni: unknown key; did you mean 'min'?" in bad.problem["detail"]
        await server.deploy({"m.onnx": MODEL}, name="f")

        taken = await post(server, "f", MODEL, derived_name=True)

        assert (taken.status, taken.problem["code"]) == (409, "conflict")
        assert "--name" in taken.problem["detail"]
        assert len((await server.admin("GET", "/operations")).json()["items"]) == 1


async def test_two_deploys_of_one_name_are_both_done(tmp_path: Path) -> None:
    """Two deploys of one name run in order with numbers of their own; the later one gets the
    traffic."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        gate.shut()
        accepted = [(await post(server, "f", MODEL * n)).json() for n in (1, 2)]
        gate.open()

        ended = [(await server.ended(operation)).json() for operation in accepted]

        assert [one["result"]["revision"] for one in ended] == ["f@1", "f@2"]
        assert (await server.call("f", ANY)).json()["revision"] == "f@2"
        assert (await server.call("f@1", ANY)).json()["revision"] == "f@1"


async def test_a_running_deploy_is_followed_and_cancelled(tmp_path: Path) -> None:
    """A deploy reports its phases; a cancelled one leaves neither function nor replica."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        gate.shut()
        id = (await post(server, "f", MODEL)).json()["id"]
        followed = await server.admin("GET", f"/operations/{id}?wait=30&phase=upload")
        assert (followed.json()["phase"], followed.json()["state"]) == ("verify", "running")
        await until(lambda: gate.waiting == 1)

        answer = await server.admin("DELETE", f"/operations/{id}")

        assert (answer.status, answer.json()["state"]) == (200, "cancelled")
        assert (await server.admin("GET", f"/operations/{id}")).json()["state"] == "cancelled"
        assert (await server.call("f", ANY)).status == 404
        await server.until_pools(lambda: not server.bound())
        gate.open()


async def test_a_removed_function_refuses_held_calls_and_keeps_its_numbers(tmp_path: Path) -> None:
    """A held request of a removed function is 404 at once; the name's next revision has a new
    number."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        await server.deploy({"m.onnx": MODEL}, name="f")
        gate.shut()
        async with asyncio.TaskGroup() as group:
            held = group.create_task(server.call("f", ANY))
            await until(lambda: gate.waiting == 1)

            assert (await server.admin("DELETE", "/functions/f")).status == 200

        assert (held.result().status, held.result().problem["code"]) == (404, "unknown_function")
        gate.open()
        assert (await server.deploy({"m.onnx": MODEL}, name="f"))["revision"] == "f@2"
        assert (await server.call("f@1", ANY)).status == 404


async def test_a_deploy_survives_a_restart(tmp_path: Path) -> None:
    """A deploy that was loading when its server ended is completed by the next one, under the same
    id."""
    async with serving(tmp_path, FakeDriver(Script(hang_at="load"))) as server:
        operation = (await post(server, "f", MODEL)).json()
        await server.admin("GET", f"/operations/{operation['id']}?wait=30&phase=upload")
        token = server.token

    async with serving(tmp_path, FakeDriver()) as server:
        ended = (await server.ended(operation)).json()

        assert (ended["state"], ended["result"]["revision"]) == ("done", "f@1")
        assert (await server.call("f", ANY)).status == 200
        assert server.token == token


async def test_a_long_poll_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A long poll of a deploy is answered with its current state when the server stops."""
    async with AsyncExitStack() as stack, ClientSession() as session:
        driver = FakeDriver(Script(hang_at="load"))
        server = await stack.enter_async_context(serving(tmp_path, driver))
        id = (await post(server, "f", MODEL)).json()["id"]
        await server.admin("GET", f"/operations/{id}?wait=30&phase=upload")
        follower = ServingServer(server.server, session)
        path = f"/operations/{id}?wait=60&phase=verify"
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follower.admin("GET", path))
            await until(lambda: bool(server.server.deploys.runner._changed._waiters))
            await stack.aclose()

    assert (following.result().status, following.result().json()["state"]) == (200, "running")


async def test_settings_of_a_function_survive_a_restart(tmp_path: Path) -> None:
    """Settings changed without a new revision survive a restart."""
    async with serving(tmp_path, FakeDriver()) as server:
        await server.deploy({"m.onnx": MODEL}, name="f")
        await server.deploy({"m.onnx": MODEL}, name="f", idle_s=7, max=3)

    async with serving(tmp_path, FakeDriver()) as server:
        shown = await server.function("f")

    assert (shown["revision"], shown["idle_s"], shown["max"]) == ("f@1", 7, 3)
