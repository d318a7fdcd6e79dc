"""Tests of a whole server with several gateways: its preconditions, and its state after the end."""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, ClientTimeout

from admin.compose import ADMIN_SOCKET, Server, running
from admin.settings import Settings, run_dir
from admin.store import admin_token
from admin.workers.messages import Activity
from pool_manager.driver import Driver
from registry.errors import BadRequest, Conflict
from tests.support.caller import UNTIL_S, Caller
from tests.support.fake_driver.opening import drivers_of
from tests.support.operator import MODEL, until

pytestmark = pytest.mark.slow


def settings(folder: Path, **changes: Any) -> Settings:
    """Return settings of a server on a free port with two gateways."""
    defaults = {"port": 0, "data": folder / "data", "shutdown_s": 5.0, "workers": 2}
    return Settings(**{**defaults, **changes})


@asynccontextmanager
async def serving(folder: Path, **changes: Any) -> AsyncIterator[tuple[Server, Caller]]:
    """A server over fake replicas, and a caller."""
    timeout = ClientTimeout(total=UNTIL_S)
    async with (
        running(settings(folder, **changes), drivers_of()) as server,
        ClientSession(timeout=timeout) as session,
    ):
        yield server, Caller(server.url, admin_token(server.store.settings.data), session)


async def test_calls_and_the_admin_api_are_answered(tmp_path: Path) -> None:
    """A function is deployed, called, shown, counted and removed through the worker."""
    async with serving(tmp_path) as (_, caller):
        await caller.deploy({"m.onnx": MODEL}, name="digits")
        assert (await caller.call("digits", {"inputs": {}})).status == 200
        assert (await caller.function("digits"))["state"] == "warm"
        assert (await caller.get("/readyz")).json() == {"status": "ok", "reasons": []}
        page = (await caller.get("/metrics")).body.decode()
        labels = 'function="digits",namespace="default",outcome="ok",reason=""'
        assert f"fngate_requests_total{{{labels}}} 1.0" in page
        assert 'fngate_pool_state{pool="default/digits@1",state="warm"} 1.0' in page
        assert (await caller.admin("DELETE", "/functions/digits")).status == 200
        assert (await caller.call("digits", {"inputs": {}})).status == 404
        assert (await caller.get("/nowhere")).problem["detail"] == "no route GET /nowhere"


async def test_arrivals_of_workers_are_kept(tmp_path: Path) -> None:
    """The stop of a server stores the requests that its workers have not yet reported."""
    async with serving(tmp_path) as (_, caller):
        await caller.deploy({"m.onnx": MODEL}, name="digits")
        for _ in range(3):
            await caller.call("digits", {"inputs": {}})
    async with serving(tmp_path) as (server, _):
        kept = await server.store.history.arrivals("digits", 0)

    assert sum(one.count for one in kept) == 3


async def test_only_this_user_reaches_the_private_application(tmp_path: Path) -> None:
    """The private socket is accessible to this user only, replaces a stale one, and is removed at
    the end."""
    path = run_dir(settings(tmp_path).data) / ADMIN_SOCKET
    path.parent.mkdir(mode=0o700, parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with serving(tmp_path):
        found = path.lstat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        connector = aiohttp.UnixConnector(str(path))
        async with (
            ClientSession(connector=connector) as session,
            session.get("http://localhost/admin/v1/keys") as answer,
        ):
            assert answer.status == 401

    assert not path.exists()


async def test_a_port_that_is_taken_frees_the_data_folder(tmp_path: Path) -> None:
    """A server that cannot listen releases the data folder, and has not touched replicas: those of
    a server before would be adopted, and then stopped."""

    async def opened(*_: object) -> Driver:
        raise AssertionError("the driver is opened")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            async with running(settings(tmp_path, port=port), {"process": opened}):
                pass

    async with serving(tmp_path):
        pass


async def test_a_port_of_grpc_that_is_taken_is_named(tmp_path: Path) -> None:
    """Of a port for gRPC that is taken the error has the port and the setting; its number would
    mean the port of HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}: .*--grpc-port or FN_GRPC_PORT") as caught:
            async with serving(tmp_path, grpc_port=port):
                pass

    assert caught.value.errno is None


async def test_one_data_folder_has_one_server(tmp_path: Path) -> None:
    """A second server on the same data folder is refused and does not affect the first."""
    async with serving(tmp_path) as (_, caller):
        with pytest.raises(Conflict, match="in use by another server"):
            async with serving(tmp_path):
                pass
        assert (await caller.get("/healthz")).status == 200


async def test_other_machines_are_let_in_only_with_a_key(tmp_path: Path) -> None:
    """Without a key a server with workers refuses to listen beyond loopback, like one without."""
    with pytest.raises(BadRequest, match="fnctl key add --scope invoke"):
        async with serving(tmp_path, listen="0.0.0.0"):
            pass


async def test_a_gateway_whose_stream_breaks_comes_back(tmp_path: Path) -> None:
    """A gateway whose stream breaks keeps its process and its calls; a key that is removed
    meanwhile is refused by both once the removal is answered, and both know new functions."""
    async with serving(tmp_path) as (server, caller):
        await caller.deploy({"m.onnx": MODEL}, name="digits")
        made = (await caller.admin("POST", "/keys", {"scopes": ["invoke"]})).json()
        before = {slot.name for slot in server.gateways._slots}
        for slot in server.gateways._slots:
            assert slot.session is not None
            slot.session._stream.abort("broken by a test")
        assert (await caller.admin("DELETE", f"/keys/{made['id']}")).status == 200
        assert await statuses(server.url, "digits", made["secret"]) == {401}
        await caller.deploy({"m.onnx": MODEL}, name="more")
        assert await statuses(server.url, "more", caller.token) == {200}

        assert {slot.name for slot in server.gateways._slots} == before
        assert server.gateways.deaths == 0
        assert (await caller.get("/readyz")).json()["status"] == "ok"


async def test_streams_that_break_lose_and_double_no_arrivals(tmp_path: Path) -> None:
    """Calls count once, though each stream breaks between the counting of a report and its answer:
    the report comes again, and is not counted twice."""
    broken: list[str] = []
    async with serving(tmp_path) as (server, caller):
        await caller.deploy({"m.onnx": MODEL}, name="digits")
        count = server.gateways._reports.on_activity

        def count_and_break(gateway: str, activity: Activity) -> None:
            count(gateway, activity)
            if activity.arrived and gateway not in broken:
                broken.append(gateway)
                for slot in server.gateways._slots:
                    if slot.name == gateway and slot.session is not None:
                        slot.session._stream.abort("broken by a test")

        server.gateways._reports.on_activity = count_and_break  # type: ignore[method-assign]
        for _ in range(40):
            assert (await caller.call("digits", {"inputs": {}})).status == 200
        await until(lambda: bool(broken))
        for _ in range(20):
            assert (await caller.call("digits", {"inputs": {}})).status == 200
        assert server.gateways.deaths == 0
        page = (await caller.get("/metrics")).body.decode()
        assert (
            'fngate_cold_start_seconds_count{function="digits",namespace="default",phase=' in page
        )
    async with serving(tmp_path) as (server, _):
        kept = await server.store.history.arrivals("digits", 0)

    assert sum(one.count for one in kept) == 60


async def statuses(url: str, name: str, secret: str) -> set[int]:
    """Return the statuses of calls over connections that both gateways take."""
    found = set()
    for _ in range(20):
        async with ClientSession() as session:
            bearer = f"Bearer {secret}"
            answer = await Caller(url, "", session).call(name, {"inputs": {}}, Authorization=bearer)
            found.add(answer.status)
    return found
