"""Parks as operators see and ask for them: the admin API, its views and metrics, over a real engine
and the stand-in for NVML."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from admin.cli.answers import read_receipt
from tests.support.caller import Answer
from tests.support.nvml.board import Board, Gpu
from tests.support.nvml.fixtures import board
from tests.support.server import ServingServer, serving
from tests.support.sleepy_engine.memory import RESIDUE_MIB
from tests.support.sleepy_engine.sleepers import manifest

__all__ = ["board"]

pytestmark = pytest.mark.slow
GPU = "GPU-stand-in-0"
THINKS = "a b [think=4]"
"""A prompt whose answer takes 4 s."""


@asynccontextmanager
async def parking(folder: Path, board: Board, *options: str) -> AsyncIterator[ServingServer]:
    """A server with one GPU and the function `llm`, whose replica is ready. `folder / "fault"` has
    the engine's fault from now on."""
    board.holders = folder / "held"
    board.holders.mkdir()
    board.add(Gpu(GPU))
    given = ("--held", str(board.holders), "--load", "2", "--host-mib", "50", *options)
    text = manifest("llm", *given, "--fault-file", str(folder / "fault"))
    async with serving(folder, standbys=0, cpu_slots=1) as server:
        await server.deploy({"readme.txt": b"-"}, name="llm", manifest=text)
        assert (await server.admin("POST", "/functions/llm/warm")).status == 200
        yield server


async def act(server: ServingServer, verb: str, name: str = "llm") -> Answer:
    """Ask for a verb of a function."""
    return await server.admin("POST", f"/functions/{name}/{verb}")


async def parked(server: ServingServer) -> dict[str, Any]:
    """Park the function; return the answer."""
    answer = await act(server, "park")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


async def complete(server: ServingServer, prompt: str = "a b c") -> Answer:
    """Call the function."""
    body = {"model": "llm", "prompt": prompt, "max_tokens": 2}
    return await server.request("POST", "/fn/llm/v1/completions", body)


async def metrics(server: ServingServer) -> dict[str, float]:
    """Return the samples, by name with labels."""
    bearer = {"Authorization": f"Bearer {server.token}"}
    lines = (await server.request("GET", "/metrics", None, bearer)).body.decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def wakes(found: dict[str, float]) -> dict[str, float]:
    """Return the wakes by outcome."""
    name = 'fngate_wakes_total{function="llm",namespace="default",outcome="%s"}'
    return {one: found[name % one] for one in ("right", "wrong", "failed")}


async def items(server: ServingServer, path: str) -> list[dict[str, Any]]:
    """Return a list of the admin API."""
    return list((await server.admin("GET", path)).json()["items"])


async def test_a_park_is_shown_everywhere(board: Board, tmp_path: Path) -> None:
    """In the function's row and `why`, at its replica and its device, in metrics; until a call
    wakes it, whose receipt has the phases of the wake."""
    async with parking(tmp_path, board) as server:
        assert wakes(await metrics(server)) == {"right": 0, "wrong": 0, "failed": 0}

        first = await parked(server)

        assert (first["asked"], first["parked"], first["stay"]) == (1, 1, 0)
        assert first["reasons"] == []
        assert (await parked(server))["asked"] == 0, "it sleeps already"
        row = await server.function("llm")
        assert (row["state"], row["phase"]) == ("parked", None)
        assert row["ready_in_ms"] == pytest.approx(row["park"]["wake_ms"], abs=1)
        (asleep,) = row["park"]["parked"]
        assert (asleep["devices"], asleep["residue_mib"]) == ([GPU], RESIDUE_MIB)
        assert asleep["host_mib"] >= 50
        assert asleep["ends_s"] - asleep["since_s"] == pytest.approx(3600, abs=1)
        why = (await server.admin("GET", "/functions/llm/why")).json()
        assert (why["state"], why["park"]) == ("parked", row["park"])
        (replica,) = await items(server, "/replicas")
        assert (replica["state"], replica["residue_mib"]) == ("parked", RESIDUE_MIB)
        assert replica["ends_s"] == pytest.approx(asleep["ends_s"], abs=1)
        gpu = next(one for one in await items(server, "/devices") if one["id"] == GPU)
        assert (gpu["state"], gpu["replicas"], gpu["parked"]) == ("free", [], [replica["id"]])
        assert (gpu["charged_mib"], gpu["residue_mib"]) == (RESIDUE_MIB, RESIDUE_MIB)
        found = await metrics(server)
        residue = f'fngate_device_memory_residue_bytes{{device="{GPU}",host="local",kind="cuda"}}'
        assert found[residue] == RESIDUE_MIB * 2**20
        assert found['fngate_host_parked_bytes{host="local"}'] >= 50 * 2**20
        assert found['fngate_pool_replicas{pool="default/llm@1",state="parked"}'] == 1

        answer = await complete(server)

        assert answer.status == 200, answer.body
        receipt = read_receipt(answer.headers["Server-Timing"])
        assert {"wake", "verify"} <= receipt.phases.keys()
        assert "start" not in receipt.phases
        assert wakes(await metrics(server)) == {"right": 1, "wrong": 0, "failed": 0}
        assert (await server.function("llm"))["park"]["parked"] == []


async def test_a_parked_replica_is_woken_on_request(board: Board, tmp_path: Path) -> None:
    """Once; a replica that is awake is told so, and one that was stopped cannot be woken."""
    async with parking(tmp_path, board) as server:
        await parked(server)

        woken, again = await act(server, "unpark"), await act(server, "unpark")

        assert (woken.status, woken.json()["was_warm"]) == (200, False), woken.body
        assert (again.status, again.json()["was_warm"]) == (200, True)
        assert (await server.function("llm"))["state"] == "warm"
        assert (await parked(server))["parked"] == 1
        left = (await act(server, "sleep")).json()
        assert (left["asked"], left["reasons"]) == (0, ["1 parked, which --force ends"])
        ended = (await server.admin("POST", "/functions/llm/sleep", {"force": True})).json()
        assert (ended["asked"], ended["reasons"]) == (1, [])
        await server.until_pools(lambda: not server.server.manager.replicas())
        refused = await act(server, "unpark")
        assert (refused.status, refused.problem["code"]) == (409, "conflict")
        assert refused.problem["detail"] == (
            "expected a parked replica of llm, got none: it is cold; fnctl warm llm starts one"
        )
        assert (await parked(server))["parked"] == 0


async def test_a_replica_that_is_called_stays_awake(board: Board, tmp_path: Path) -> None:
    """So does one that min keeps; each with its reason. Nothing of the call is lost."""
    async with parking(tmp_path, board) as server:
        call = asyncio.create_task(complete(server, THINKS))
        await server.until_pools(lambda: server.server.manager.load("default/llm@1").busy > 0)

        busy = await parked(server)

        assert (busy["asked"], busy["parked"], busy["stay"], busy["open"]) == (0, 0, 1, 1)
        (reason,) = busy["reasons"]
        assert reason.endswith(" is not parked: it is called")
        assert (await call).status == 200
        tag = (await server.admin("GET", "/functions/llm")).headers["ETag"]
        bearer = {"Authorization": f"Bearer {server.token}", "If-Match": tag}
        await server.request("PATCH", "/admin/v1/functions/llm", {"min": 1}, bearer)
        kept = await parked(server)
        assert (kept["parked"], kept["stay"], kept["min"]) == (0, 1, 1)
        (reason,) = kept["reasons"]
        assert reason.endswith(" is not parked: the min of its function keeps it")


async def test_two_wrong_wakes_end_the_parks(board: Board, tmp_path: Path) -> None:
    """Held calls are answered by a replica that starts; then the function says that it is not
    parked any more, and why: in its row, in `why`, in /readyz and to whoever asks for a park."""
    async with parking(tmp_path, board) as server:
        (tmp_path / "fault").write_text("garbage")
        for _ in range(2):
            assert (await parked(server))["parked"] == 1
            answer = await complete(server)
            assert answer.status == 200, answer.body
            receipt = read_receipt(answer.headers["Server-Timing"])
            assert "start" in receipt.phases

        assert wakes(await metrics(server)) == {"right": 0, "wrong": 2, "failed": 0}
        off = (await server.function("llm"))["park"]["off"]
        assert off.startswith("2 went wrong within a day, the last one because ")
        assert (await server.admin("GET", "/functions/llm/why")).json()["park"]["off"] == off
        ready = (await server.readiness()).json()
        assert f"function llm@1 is stopped and not parked any more: {off}" in ready["reasons"]
        refused = await act(server, "park")
        assert (refused.status, refused.problem["code"]) == (409, "conflict")
        assert refused.problem["detail"] == f"expected a function that is parked, got llm: {off}"


async def test_who_may_park_what(board: Board, tmp_path: Path) -> None:
    """An unknown function, one of a revision and one of another namespace are refused, as are keys
    without the scope. A function that is removed has no replicas, parked or not, and no wakes."""
    async with parking(tmp_path, board) as server:
        for verb in ("park", "unpark"):
            found = [(await act(server, verb, name)).status for name in ("nobody", "llm@1")]
            assert found == [404, 400]
            assert (await act(server, verb, "other%2Fllm")).status in (400, 404)
            assert (await act(server, f"{verb}?wait=0")).status == 400
            made = await server.admin("POST", "/keys", {"scopes": ["read"], "note": ""})
            bearer = {"Authorization": f"Bearer {made.json()['secret']}"}
            path = f"/admin/v1/functions/llm/{verb}"
            assert (await server.request("POST", path, None, bearer)).status == 403
        await parked(server)
        removed = await server.admin("DELETE", "/functions/llm")
        assert removed.status == 200
        for verb in ("park", "unpark"):
            assert (await act(server, verb)).status == 404
        await server.until_pools(lambda: not server.server.manager.replicas())
        shown = await metrics(server)
        assert not any(name.startswith("fngate_wakes_total{") for name in shown)


async def test_a_removal_ends_the_wait_for_a_park(board: Board, tmp_path: Path) -> None:
    """Whoever waits for a sleep or a wake of a function that goes is told so at once."""
    async with parking(tmp_path, board) as server:
        (tmp_path / "fault").write_text("sleep-hangs")
        waiting = asyncio.create_task(act(server, "park"))
        manager = server.server.manager
        await server.until_pools(lambda: {one.state for one in manager.replicas()} == {"parking"})
        woken = asyncio.create_task(act(server, "unpark"))

        assert (await server.admin("DELETE", "/functions/llm")).status == 200

        answer = await waiting
        assert (answer.status, answer.json()["parked"]) == (200, 0), answer.body
        gone = await woken
        assert (gone.status, gone.problem["code"]) == (404, "unknown_function")
