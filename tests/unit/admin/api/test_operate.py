"""Tests of operating a function: roll back, scale, warm, sleep; and of backups."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from registry.errors import StoreUnavailable
from registry.store.recovery.inspection import inspect_database
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.nouns import SIGNATURE
from tests.support.operator import MODEL, until
from tests.support.server import LARGE, ROOM_MIB, Answer, Gate, ServingServer, serving

CALL: dict[str, Any] = {"inputs": {}}
PATH = "/functions/digits"


async def deploy(server: ServingServer, **overrides: Any) -> str:
    """Deploy another revision of the same model."""
    result = await server.deploy({"m.onnx": MODEL}, name="digits", **overrides)
    return str(result["revision"])


async def roll_back(server: ServingServer, **fields: Any) -> dict[str, Any]:
    """Roll back; return the operation when it has ended."""
    answer = await server.admin("POST", f"{PATH}/rollback", fields)
    assert answer.status == 202, answer.body
    ended: dict[str, Any] = (await server.ended(answer.json())).json()
    return ended


async def patch(server: ServingServer, body: Any, match: str | None) -> Answer:
    """PATCH the function with `If-Match`, unless that is None."""
    headers = {"Authorization": f"Bearer {server.token}"}
    if match is not None:
        headers["If-Match"] = match
    return await server.request("PATCH", f"/admin/v1{PATH}", body, headers)


async def tag(server: ServingServer) -> str:
    """Return the function's ETag."""
    return (await server.admin("GET", PATH)).headers["ETag"]


async def test_a_rollback_goes_to_the_revision_before(server: ServingServer) -> None:
    """A rollback is an operation with an address; repeated, it goes further back until no revision
    is left."""
    for number in (2, 3):
        assert await deploy(server, batch_max=number) == f"digits@{number}"
    assert (await server.function("digits"))["previous"] == 2

    accepted = await server.admin("POST", f"{PATH}/rollback")
    operation = accepted.json()
    first = (await server.ended(operation)).json()

    assert accepted.headers["Location"] == f"/admin/v1/operations/{operation['id']}"
    assert (first["kind"], first["state"]) == ("rollback", "done")
    assert first["result"] == {
        "revision": "digits@2",
        "from": "digits@3",
        "switch": "digits@2 is cold",
    }
    assert (await roll_back(server))["result"]["revision"] == "digits@1"
    shown = await server.function("digits")
    assert (shown["revision"], shown["previous"]) == ("digits@1", None)
    assert [one["traffic"] for one in shown["revisions"]] == [True, False, False]
    none = await server.admin("POST", f"{PATH}/rollback")
    assert (none.status, none.problem["code"]) == (409, "conflict")
    assert none.problem["detail"] == (
        "no revision had the traffic of digits before digits@1; name one with --to: 1, 2, 3"
    )


async def test_a_rollback_names_any_revision(server: ServingServer) -> None:
    """A rollback may name any revision, newer ones too; settings stay as they are."""
    await deploy(server, batch_max=2)
    await roll_back(server)
    await patch(server, {"idle_s": 7}, "*")

    assert (await roll_back(server, to=2))["result"]["revision"] == "digits@2"

    shown = await server.function("digits")
    assert (shown["previous"], shown["idle_s"]) == (1, 7)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"to": 9}, 404, "function 'digits' has no revision 9; there is 1"),
        ({"to": 1}, 409, "calls of digits go to digits@1 already"),
        ({"to": "one"}, 400, "the rollback request cannot be read: Expected `int | null`"),
        ({"too": 1}, 400, "unknown field `too`"),
    ],
)
async def test_a_rollback_that_cannot_be_is_refused_at_once(
    server: ServingServer, body: dict[str, Any], status: int, text: str
) -> None:
    """An impossible rollback is refused at once with the known revisions, without an operation."""
    answer = await server.admin("POST", f"{PATH}/rollback", body)

    assert (answer.status, text in answer.problem["detail"]) == (status, True), answer.body
    assert len((await server.admin("GET", "/operations")).json()["items"]) == 1


@pytest.mark.parametrize("verb", ["rollback", "warm", "sleep"])
@pytest.mark.parametrize(("name", "status"), [("nobody", 404), ("digits@1", 400)])
async def test_a_verb_needs_a_functions_plain_name(
    server: ServingServer, verb: str, name: str, status: int
) -> None:
    """Rollback, warm and sleep refuse an unknown function, and a name with a revision."""
    assert (await server.admin("POST", f"/functions/{name}/{verb}")).status == status


async def test_scaling_is_changed_with_a_matching_tag(server: ServingServer) -> None:
    """PATCH changes the named settings, keeps the others, and changes the ETag."""
    before = await tag(server)

    answer = await patch(server, {"max": 3, "idle_s": 9.5}, before)

    assert (answer.status, answer.json()) == (
        200,
        {
            "name": "digits",
            "min": 0,
            "max": 3,
            "idle_s": 9.5,
            "spread": True,
            "file_hosts": 1,
            "warnings": [],
            "preemptible": True,
        },
    )
    assert answer.headers["ETag"] == await tag(server) != before
    stale = await patch(server, {"max": 4}, before)
    assert (stale.status, stale.problem["code"]) == (412, "precondition_failed")
    assert (await server.function("digits"))["max"] == 3
    stored = await server.server.store.functions.load_all()
    assert stored[0].function.scaling.max == 3


async def test_what_may_be_preempted_follows_from_min_unless_it_is_set(
    server: ServingServer,
) -> None:
    """It is told as it is, stored as it was set, and reaches what replicas are started with."""
    answer = await patch(server, {"min": 1}, await tag(server))
    assert answer.json()["preemptible"] is False
    assert (await server.function("digits"))["preemptible"] is False

    answer = await patch(server, {"preemptible": True}, await tag(server))

    assert answer.json()["preemptible"] is True
    stored = await server.server.store.functions.load_all()
    assert (stored[0].function.scaling.min, stored[0].function.scaling.preemptible) == (1, True)
    key = stored[0].revision.key
    assert server.server.manager._bindings[key].preemptible
    odd = await patch(server, {"preemptible": 3}, await tag(server))
    assert odd.status == 400


async def test_a_change_needs_if_match(server: ServingServer) -> None:
    """PATCH without If-Match is 428; a weak tag does not match, and one of several is enough."""
    missing = await patch(server, {"max": 2}, None)
    assert (missing.status, missing.problem["code"]) == (428, "precondition_required")
    now = await tag(server)

    assert (await patch(server, {"max": 2}, f"W/{now}")).status == 412
    assert (await patch(server, {"max": 2}, f'"other", {now}')).status == 200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {},
            "expected at least one of min, max, idle_s, spread, file_hosts, preemptible; got none",
        ),
        ({"min": 2}, "scaling.max: expected at least scaling.min (2), got 1"),
        ({"min": -1}, "scaling.min: expected at least 0, got -1"),
        ({"max": 1001}, "scaling.max: expected at most 1000, got 1001"),
        ({"idle_s": -1}, "scaling.idle_s: expected at least 0, got -1"),
        ({"min": None}, "Expected `int`, got `null`"),
        ({"labels": {}}, "unknown field `labels`"),
        ([], "Expected `object`, got `array`"),
    ],
)
async def test_a_change_has_the_manifests_limits(
    server: ServingServer, body: Any, text: str
) -> None:
    """A value out of range is refused with key, expected and got; nothing changes."""
    before = await tag(server)
    answer = await patch(server, body, "*")

    assert (answer.status, text in answer.problem["detail"]) == (400, True), answer.body
    assert await tag(server) == before


async def test_a_floor_is_kept_from_now_on(server: ServingServer) -> None:
    """min = 1 wakes a cold function without a call."""
    await patch(server, {"min": 1}, "*")

    await server.until_shown("digits", state="warm", ready=1)


async def test_warm_answers_when_a_replica_is_ready(server: ServingServer) -> None:
    """warm answers when a replica is ready, with the time it took, or that it was warm already."""
    first = (await server.admin("POST", f"{PATH}/warm")).json()
    second = (await server.admin("POST", f"{PATH}/warm?wait=1")).json()

    assert (first["revision"], first["was_warm"], second["was_warm"]) == ("digits@1", False, True)
    assert first["took_ms"] > 0
    assert (await server.function("digits"))["ready"] == 1


COMPILED = 'schema = 1\n[runtime]\nengine = "auto"'


async def test_a_compiled_model_can_be_asked_for(tmp_path: Path) -> None:
    """prepare answers at once with the build, which the function then shows until it is done."""
    driver = FakeDriver(Script(signature=SIGNATURE, batch=8))
    async with serving(tmp_path, driver, compiler="onnxruntime") as server:
        await deploy(server, manifest=COMPILED)
        answer = await server.admin("POST", f"{PATH}/prepare", {"now": True})
        shown = (await server.function("digits"))["build"]

        assert answer.status == 202
        assert answer.json()["revision"] == "digits@1"
        assert answer.json()["build"]["compiler"] == "onnxruntime"
        assert shown["state"] in ("waiting", "building", "done", "failed")
        listed = (await server.admin("GET", "/functions")).json()["items"][0]["build"]
        assert listed.keys() == {"state", "reason", "began_s", "estimate_s"}


async def test_prepare_has_a_model_measured_that_is_not_compiled(server: ServingServer) -> None:
    """Its function.toml asks for no compiled one; a request that cannot be read is refused."""
    measured = await server.admin("POST", f"{PATH}/prepare")
    unreadable = await server.admin("POST", f"{PATH}/prepare", {"now": 1})

    assert (measured.status, measured.json()["build"]) == (202, None)
    assert (unreadable.status, unreadable.problem["code"]) == (400, "bad_request")
    assert (await server.function("digits"))["build"] is None


@pytest.mark.parametrize("wait", ["0", "soon", "3601", "-1"])
async def test_a_wait_is_bounded(server: ServingServer, wait: str) -> None:
    """`wait` is bounded; other values are refused by name."""
    answer = await server.admin("POST", f"{PATH}/warm?wait={wait}")

    assert answer.status == 400
    assert answer.problem["detail"].startswith("wait: expected a whole number from 1 to 3600")


async def test_warm_tells_why_not(tmp_path: Path) -> None:
    """warm is 503 with the reason and the last log lines of a replica that did not load."""
    async with serving(tmp_path, FakeDriver()) as server:
        await deploy(server)
    driver = FakeDriver(Script(refuse_load="no such operator"))
    async with serving(tmp_path, driver, standbys=0) as server:
        answer = await server.admin("POST", f"{PATH}/warm")

    assert (answer.status, answer.problem["code"]) == (503, "function_failing")
    assert answer.problem["detail"] == "digits@1 does not become ready: no such operator"
    assert any("starts for default/digits@1" in line for line in answer.problem["log_tail"])


@pytest.mark.slow  # a second is the shortest wait
async def test_warm_tells_that_it_goes_on(tmp_path: Path) -> None:
    """warm is 503 when its wait is over while the model loads; the load continues."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        await deploy(server)
        gate.shut()

        answer = await server.admin("POST", f"{PATH}/warm?wait=1")

        assert (answer.status, answer.problem["code"]) == (503, "no_room")
        assert answer.problem["detail"] == "digits@1 is still loading after 1 s, and keeps starting"
        assert "Retry-After" in answer.headers
        gate.open()
        await server.until_shown("digits", state="warm")


@pytest.mark.slow  # a second is the shortest wait
async def test_warm_tells_that_there_is_no_room(tmp_path: Path) -> None:
    """warm is 503 and names the function that keeps the memory."""
    async with serving(tmp_path, FakeDriver(LARGE), host_memory_mib=ROOM_MIB) as server:
        await deploy(server)
        await server.deploy({"m.onnx": MODEL}, name="kept", min=1)
        await server.until_shown("kept", state="warm")

        answer = await server.admin("POST", f"{PATH}/warm?wait=1")

    assert (answer.status, answer.problem["code"]) == (503, "no_room")
    assert "digits@1 found no room within 1 s" in answer.problem["detail"]


@pytest.mark.slow  # a whole server stops
async def test_a_pending_warm_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A server that stops answers a pending warm with 503 at once, however long its wait."""
    gate = Gate()
    driver = FakeDriver(Script(load_s=1), sleep=gate)
    async with ClientSession() as session, asyncio.TaskGroup() as group:
        async with serving(tmp_path, driver) as server:
            await deploy(server)
            gate.shut()
            headers = {"Authorization": f"Bearer {server.token}"}
            url = f"{server.url}/admin/v1{PATH}/warm"
            asked = group.create_task(session.post(url, headers=headers))
            await server.until_shown("digits", state="waking")
        answer = await asked

        assert answer.status == 503
        assert (await answer.json())["code"] == "shutting_down"


async def test_a_function_that_is_removed_does_not_become_warm(tmp_path: Path) -> None:
    """A pending warm of a function that is removed reports the removal, not a failed load."""
    async with serving(tmp_path, FakeDriver(LARGE), host_memory_mib=ROOM_MIB) as server:
        await deploy(server)
        await server.deploy({"m.onnx": MODEL}, name="kept", min=1)
        await server.until_shown("kept", state="warm")
        asked = asyncio.create_task(server.admin("POST", f"{PATH}/warm"))
        await server.until_shown("digits", wanted=1)
        await server.admin("DELETE", PATH)
        answer = await asked

    assert (answer.status, answer.problem["code"]) == (404, "unknown_function")


async def test_a_warm_whose_client_left_is_withdrawn(tmp_path: Path) -> None:
    """A client that disconnects withdraws its demand: no room is made for the function any more."""
    async with serving(tmp_path, FakeDriver(LARGE), host_memory_mib=ROOM_MIB) as server:
        await deploy(server)
        await server.deploy({"m.onnx": MODEL}, name="kept", min=1)
        await server.until_shown("kept", state="warm")
        asked = asyncio.create_task(server.admin("POST", f"{PATH}/warm"))
        await server.until_shown("digits", wanted=1)
        asked.cancel()

        await server.until_shown("digits", wanted=0)


@pytest.mark.slow  # its answer waits for the replica's
async def test_sleep_lets_idle_replicas_go(server: ServingServer) -> None:
    """sleep stops the idle replicas of every revision at once; without any it does nothing."""
    await server.admin("POST", f"{PATH}/warm")
    answers: list[dict[str, Any]] = []

    async def is_gone() -> bool:
        answers.append((await server.admin("POST", f"{PATH}/sleep")).json())
        return not answers[-1]["stay"]

    # A replica that became ready within the last millisecond refuses once.
    await server.until(is_gone)

    asked = {"name": "digits", "asked": 1, "stay": 0, "min": 0, "open": 0, "reasons": []}
    assert answers[-1] == asked
    await server.until_shown("digits", state="cold", ready=0)
    await is_gone()
    assert (answers[-1]["asked"], answers[-1]["stay"]) == (0, 0)


async def test_sleep_keeps_the_floor(server: ServingServer) -> None:
    """sleep keeps `min` replicas and reports how many."""
    await patch(server, {"min": 1}, "*")
    await server.until_shown("digits", state="warm")

    answer = (await server.admin("POST", f"{PATH}/sleep")).json()

    assert (answer["asked"], answer["stay"], answer["reasons"]) == (0, 1, ["min is 1"])


@pytest.mark.slow  # its answer waits for the replica's
async def test_sleep_keeps_busy_replicas(tmp_path: Path) -> None:
    """A running request is answered and keeps its replica despite sleep. By force the replica
    takes no more, answers it, and stops; nothing is started for it."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(run_s=1), sleep=gate)) as server:
        await deploy(server)
        await server.admin("POST", f"{PATH}/warm")
        gate.shut()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(server.call("digits", CALL))
            await until(lambda: gate.waiting == 1)
            answer = (await server.admin("POST", f"{PATH}/sleep")).json()
            forced = (await server.admin("POST", f"{PATH}/sleep", {"force": True})).json()
            await server.until_shown("digits", state="draining", ready=0)
            gate.open()
        await server.until_shown("digits", state="cold")

    assert (answer["stay"], answer["reasons"]) == (1, ["1 call open"])
    assert (forced["asked"], forced["stay"], forced["reasons"]) == (1, 0, [])
    assert call.result().status == 200


async def test_sleep_knows_that_a_call_has_ended(tmp_path: Path) -> None:
    """Gateways report the end of a call up to a second later: sleep asks them before."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await deploy(server)
        await server.call("digits", CALL)
        answer = (await server.admin("POST", f"{PATH}/sleep")).json()

        assert (answer["asked"], answer["stay"], answer["open"]) == (1, 0, 0)
        await server.until_shown("digits", state="cold")


async def test_sleep_knows_its_body(server: ServingServer) -> None:
    """Unknown keys and other types are refused by name."""
    for body in ({"forse": True}, {"force": "yes"}):
        answer = await server.admin("POST", f"{PATH}/sleep", body)
        assert (answer.status, answer.problem["code"]) == (400, "bad_request")


@pytest.mark.parametrize("method", ["PATCH", "POST"])
async def test_operating_needs_the_scope_deploy(server: ServingServer, method: str) -> None:
    """A key with scope read may not operate functions."""
    key = (await server.admin("POST", "/keys", {"scopes": ["read"]})).json()
    path = PATH if method == "PATCH" else f"{PATH}/sleep"
    headers = {"Authorization": f"Bearer {key['secret']}", "If-Match": "*"}

    answer = await server.request(method, f"/admin/v1{path}", {}, headers)

    assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")


async def test_a_copy_is_sent(server: ServingServer, tmp_path: Path) -> None:
    """A backup is a whole database with the latest commits, and leaves no temporary file."""
    await server.admin("POST", "/keys", {"scopes": ["invoke"]})

    answer = await server.admin("GET", "/backup")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/vnd.sqlite3")
    assert answer.headers["Cache-Control"] == "no-store"
    (tmp_path / "copy").write_bytes(answer.body)
    report = inspect_database(tmp_path / "copy", is_checked=True)
    assert (report.state, report.functions, report.keys) == ("sound", 1, 1)
    backups = server.server.store.settings.backups
    assert [name for name in os.listdir(backups) if name.startswith(".")] == []


async def test_copies_at_once_are_bounded(server: ServingServer) -> None:
    """A third simultaneous backup is refused with a time to retry."""
    answers = await asyncio.gather(*(server.admin("GET", "/backup") for _ in range(6)))

    found = sorted(answer.status for answer in answers)
    assert set(found) <= {200, 429}
    assert found.count(200) >= 2
    assert (await server.admin("GET", "/backup")).status == 200


async def test_a_copy_that_cannot_be_made(server: ServingServer) -> None:
    """A backup that cannot be made is 503 with the reason that /readyz gives for the daily one."""
    backups = server.server.store.backups

    async def fail() -> None:
        raise StoreUnavailable("disk full: no room")

    backups.snapshot = fail  # type: ignore[assignment, method-assign]
    answer = await server.admin("GET", "/backup")
    assert (answer.status, answer.problem["detail"]) == (503, "disk full: no room")

    backups._failure = "disk full"
    readiness = (await server.readiness()).json()
    assert readiness["status"] == "degraded"
    assert readiness["reasons"][0].startswith("backup: the daily copy of the database failed")
