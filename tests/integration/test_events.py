"""Tests of the event stream of real servers, with one and with two gateway processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from tests.support import models
from tests.support.caller import UNTIL_S, Caller
from tests.support.followed import following
from tests.support.process_server import ServerProcess, server_process, wait_end
from tests.support.worker_server import until_replaced, worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ONE: dict[str, Any] = {"inputs": {"x": [[1, 0, 0, 0]]}}


@pytest.fixture(scope="module", params=["1", "2"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with one or two gateway processes, and one function."""
    folder = tmp_path_factory.mktemp("events")
    with server_process(folder / "data", "--workers", request.param) as server:
        server.fnctl_json("deploy", str(models.affine(folder, 2, 0)), "--name", "twice")
        yield server


async def call(server: ServerProcess) -> int:
    """Return the status of one call."""
    async with (
        ClientSession(timeout=ClientTimeout(total=UNTIL_S)) as session,
        session.post(f"{server.url}/fn/twice", json=ONE) as answer,
    ):
        return answer.status


def caller(server: ServerProcess) -> Caller:
    """Caller for `following`, which makes a session of its own."""
    return Caller(server.url, server.token, None)  # type: ignore[arg-type]


async def test_calls_cause_events(server: ServerProcess) -> None:
    """Calls cause events for waking and warm, then for the rate summed over all processes."""
    async with following(caller(server)) as told:
        await told.until("ready")
        assert await call(server) == 200
        await told.line("twice", state="warm")
        for _ in range(9):
            assert await call(server) == 200
        line = await told.line("twice", rate=1.0)

    assert line["p50_ms"] > 0
    assert line["p95_ms"] >= line["p50_ms"]


async def test_why_a_replica_went_is_seen(server: ServerProcess) -> None:
    """After a replica is killed, the decision names the signal, the function is cold and its device
    free."""
    async with following(caller(server), "?function=twice") as told:
        await told.until("ready")
        assert await call(server) == 200
        replica = await told.replica("ready")
        os.kill(server.replica_processes()[replica], signal.SIGKILL)
        decision = await told.until("decision", lambda data: "SIGKILL" in data["text"])
        await told.line("twice", state="cold")
        gone = await told.until("gone", lambda data: data["replicas"])

    assert decision.data["text"] == f"{replica} ended: was killed by SIGKILL"
    assert gone.data["replicas"] == [replica]


async def test_an_id_of_a_killed_server_gets_a_snapshot(tmp_path: Path) -> None:
    """An id of a killed server is unknown to the next one, which sends a snapshot."""
    with server_process(tmp_path / "data") as server:
        server.fnctl_json("deploy", str(models.affine(tmp_path, 2, 0)), "--name", "twice")
        async with following(caller(server)) as told:
            ready = await told.until("ready")
        server.kill()
        server.start()
        async with following(caller(server), last=ready.id) as again:
            reset = await again.next()
            line = await again.line("twice")

    assert (reset.kind, line["revision"]) == ("reset", "twice@1")


async def test_a_stream_goes_on_through_another_worker(tmp_path: Path) -> None:
    """A stream resumes through another gateway process when its own is killed, without a loss."""
    with server_process(tmp_path / "data", "--workers", "2") as server:
        assert server.process is not None
        async with following(caller(server)) as told:
            ready = await told.until("ready")
            first, second = worker_pids(server.process.pid)
            for pid in (first, second):
                ended = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
                await asyncio.to_thread(wait_end, ended)
                # Some process must have the port all the time, or the next connection would be
                # refused.
                await asyncio.to_thread(until_replaced, server, pid)
            await told.over()
        async with following(caller(server), last=ready.id) as again:
            beat = await again.until("beat")

    assert "reset" not in [one.kind for one in again.came]
    assert beat.data["at_s"] > 0
