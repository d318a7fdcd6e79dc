"""Tests of the admin API for functions: list, show, why, logs, removal, pages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import MODEL, until
from tests.support.server import LARGE, ROOM_MIB, Gate, ServingServer, serving

CALL = {"inputs": {}}


async def test_functions_are_listed_as_they_are(server: ServingServer) -> None:
    """A listed function is cold at first and warm after a call."""
    (before,) = (await server.admin("GET", "/functions")).json()["items"]
    assert (before["name"], before["revision"], before["state"]) == ("digits", "digits@1", "cold")

    assert (await server.call("digits", CALL)).status == 200

    (after,) = (await server.admin("GET", "/functions")).json()["items"]
    assert (after["state"], after["ready"], after["held"]) == ("warm", 1, 0)


async def test_a_function_is_shown_in_full(server: ServingServer) -> None:
    """A function is shown with limits, signature, revisions and a call to copy."""
    shown = await server.function("digits")

    assert shown["limits"]["timeout_s"] == 60
    assert shown["signature"]["kind"] == "json"
    assert [one["number"] for one in shown["revisions"]] == [1]
    assert shown["revisions"][0]["profile"]["batch_max"] == 1
    assert shown["example"].startswith(f"curl {server.url}/fn/digits ")
    listed = (await server.admin("GET", "/functions/digits/revisions")).json()
    assert listed == {"items": shown["revisions"], "next": None}


@pytest.mark.parametrize("path", ["", "/revisions", "/why", "/logs"])
async def test_an_unknown_function_is_answered_with_the_nearest(
    server: ServingServer, path: str
) -> None:
    """Every route of an unknown function answers with the nearest name."""
    answer = await server.admin("GET", f"/functions/digit{path}")

    assert (answer.status, answer.problem["nearest"]) == (404, ["digits"])


async def test_why_tells_decisions_and_phases(server: ServingServer) -> None:
    """After a cold call, why lists the decisions and the phases of the cold start."""
    await server.call("digits", CALL)
    store = server.server.store
    await until(lambda: server.server.manager.replicas()[0].phases.get("first_run") is not None)
    await store.history.flush()

    why = (await server.admin("GET", "/functions/digits/why")).json()

    assert why["state"] == "warm"
    texts = [one["text"] for one in why["decisions"]]
    assert any(text.startswith("starts ") for text in texts)
    assert any(text.endswith(" is ready") for text in texts)
    (receipt,) = why["cold_starts"]
    assert (receipt["outcome"], receipt["number"], receipt["device_kind"]) == ("ready", 1, "cpu")
    assert {"place", "start", "load", "first_run"} <= receipt["phases"].keys()
    assert why["intervals"][0]["state"] in ("cold", "waking")


async def test_why_tells_of_a_first_deploy(tmp_path: Path) -> None:
    """While its trial runs, with the trial's decisions, and after it has failed. A name that nobody
    deploys is unknown."""
    gate = Gate()
    gate.shut()
    driver = FakeDriver(Script(load_s=1, refuse_load="no such opset"), sleep=gate)
    path = "/functions/digits/why"
    async with serving(tmp_path, driver, standbys=0) as server:
        assert (await server.admin("GET", path)).problem["code"] == "unknown_function"
        deploy = asyncio.create_task(server.try_deploy({"m.onnx": MODEL}, name="digits"))
        await server.until_pools(lambda: bool(server.bound()))
        running = (await server.admin("GET", path)).json()
        gate.open()
        ended = (await deploy).json()
        failed = (await server.admin("GET", path)).json()

    assert (running["state"], failed["state"]) == ("not_deployed", "not_deployed")
    assert running["reason"] == "its deploy is running: verify"
    assert any(one["text"].startswith("starts ") for one in running["decisions"])
    assert running["operation"] == {**ended, "state": "running", "error": {}, "ended_s": 0.0}
    assert failed["reason"] == f"its deploy failed: {ended['error']['detail']}"
    assert failed["operation"] == ended


async def test_why_tells_of_the_operation_that_runs(tmp_path: Path) -> None:
    """Of a function that is deployed, beside its own state; None once it has ended."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        before = await why(server)
        gate.shut()
        files = {"m.onnx": MODEL, "handler.py": b"def predict(inputs, ctx): return inputs"}
        deploy = asyncio.create_task(server.try_deploy(files, name="digits"))
        await server.until_pools(lambda: bool(server.bound()))
        during = await why(server)
        gate.open()
        await deploy

    assert before["operation"] is None
    assert (during["state"], during["operation"]["state"]) == ("cold", "running")


async def why(server: ServingServer) -> dict[str, Any]:
    """Return why `digits` is as it is."""
    return dict((await server.admin("GET", "/functions/digits/why")).json())


async def test_why_names_the_blocking_reason(tmp_path: Path) -> None:
    """why gives a reason for a function that serves but cannot have all the replicas it wants."""
    async with serving(tmp_path, FakeDriver(LARGE), host_memory_mib=ROOM_MIB) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits", min=2, max=2)
        await server.until_shown("digits", state="warm", ready=1, wanted=2)
        why: dict[str, Any] = {}

        async def is_told() -> bool:
            why.update((await server.admin("GET", "/functions/digits/why")).json())
            return bool(why["blocked"])

        await server.until(is_told)

    assert why["state"] == "warm"
    assert why["blocked"] == "needs 700 MiB, 400 are free"


async def test_who_keeps_all_memory_is_told_to_who_may_read_it(tmp_path: Path) -> None:
    """A caller's 503 says that `min` keeps the memory; the administrator's, and why, name the
    functions."""
    async with serving(tmp_path, FakeDriver(LARGE), host_memory_mib=ROOM_MIB) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        await server.deploy({"m.onnx": MODEL}, name="private", min=1)
        await server.until_shown("private", state="warm")
        made = await server.admin("POST", "/keys", {"scopes": ["invoke"]})
        bearer, own = f"Bearer {made.json()['secret']}", f"Bearer {server.token}"
        held = asyncio.create_task(server.call("digits", CALL, Authorization=bearer))
        await server.until_shown("digits", state="waking")

        caller = await server.call("digits", CALL, Authorization=bearer, Prefer="wait=0")
        admin = await server.call("digits", CALL, Authorization=own, Prefer="wait=0")
        why = (await server.admin("GET", "/functions/digits/why")).json()
        held.cancel()

    text = "needs 700 MiB, 400 are free, the min of other functions keeps the rest"
    assert caller.problem["detail"].endswith(text)
    assert "private" not in caller.body.decode()
    assert admin.problem["kept_by"] == why["kept_by"] == ["private"]


async def test_a_change_warns_that_all_memory_is_kept(tmp_path: Path) -> None:
    """A deploy as well as a change of the scaling, at once and with the functions' names."""
    async with serving(tmp_path, FakeDriver(LARGE), host_memory_mib=ROOM_MIB) as server:
        first = await server.deploy({"m.onnx": MODEL}, name="digits")
        second = await server.deploy({"m.onnx": MODEL}, name="other", min=1)
        tag = (await server.admin("GET", "/functions/digits")).headers["ETag"]
        changed = await server.request(
            "PATCH",
            "/admin/v1/functions/digits",
            {"min": 1},
            {"Authorization": f"Bearer {server.token}", "If-Match": tag},
        )

    said = [one.get("warnings", []) for one in (first, second)]
    assert said[0] == []
    assert said[1][0].startswith(
        "min keeps 700 of 1100 MiB for replicas on CPUs (other): no room for digits, which needs "
    )
    [text] = changed.json()["warnings"]
    assert text.startswith(
        "min asks for 1400 of 1100 MiB for replicas on CPUs (digits, other): not all"
    )
    assert "FN_HOST_MEMORY_MIB" in text


async def test_logs_are_what_replicas_wrote(server: ServingServer) -> None:
    """Logs have one entry per replica, cut to its last lines."""
    await server.call("digits", CALL)
    (replica,) = server.server.manager.replicas()

    logs = (await server.admin("GET", "/functions/digits/logs")).json()["items"]
    texts = {one["replica"]: one["text"] for one in logs}
    assert texts[replica.id] == f"fake replica {replica.id} starts for default/digits@1"
    trial = next(id for id in texts if id != replica.id)
    assert len(texts[trial].splitlines()) == 2

    last = (await server.admin("GET", "/functions/digits/logs?lines=1")).json()["items"]
    assert [len(one["text"].splitlines()) for one in last] == [1, 1]


@pytest.mark.parametrize("lines", ["0", "10001", "-1", "many", "00000000000001"])
async def test_a_number_of_lines_is_bounded(server: ServingServer, lines: str) -> None:
    """The number of lines is bounded; other values are refused by name."""
    answer = await server.admin("GET", f"/functions/digits/logs?lines={lines}")

    assert answer.status == 400
    assert answer.problem["detail"].startswith("lines: expected a whole number from 1 to 10000")


async def test_a_removed_function_is_gone_at_once(server: ServingServer) -> None:
    """A removed function is no longer listed, shown or callable; a second removal is 404."""
    answer = await server.admin("DELETE", "/functions/digits")

    assert (answer.status, answer.json()) == (200, {"removed": "digits"})
    assert (await server.admin("GET", "/functions")).json()["items"] == []
    assert (await server.call("digits", CALL)).status == 404
    assert (await server.admin("DELETE", "/functions/digits")).status == 404


async def test_functions_are_listed_in_pages(server: ServingServer) -> None:
    """Functions are listed by name in pages; `next` leads on, even past a function removed
    meanwhile."""
    for name in ("a", "b", "z"):
        await server.deploy({"m.onnx": MODEL}, name=name)

    first = (await server.admin("GET", "/functions?limit=2")).json()
    await server.admin("DELETE", f"/functions/{first['next']}")
    second = (await server.admin("GET", f"/functions?limit=2&next={first['next']}")).json()

    assert [item["name"] for item in first["items"]] == ["a", "b"]
    assert first["next"] == "digits"
    assert [item["name"] for item in second["items"]] == ["z"]
    assert second["next"] is None
    assert (await server.admin("GET", "/functions?limit=0")).status == 400
