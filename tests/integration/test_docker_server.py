"""Tests of whole servers over containers: the engine stops, servers are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest

from admin.settings import Settings
from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.containers import holder_number, owned, replica_id
from tests.support import models
from tests.support.caller import UNTIL_S
from tests.support.engine import connected
from tests.support.leaks import Leaks
from tests.support.own_engine import OwnEngine
from tests.support.process_server import ServerProcess
from tests.support.server import ServingServer, serving

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.usefixtures("forgotten_sockets"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BODY: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}


class OnDocker(Settings):
    """Settings of a server whose replicas are containers."""

    driver: Literal["process", "docker"] = "docker"


async def keep_calling(server: ServingServer, statuses: list[int]) -> None:
    while True:
        statuses.append((await server.call("warm", BODY)).status)


async def test_calls_go_on_while_the_engine_is_away(
    tmp_path: Path, runtime_image: str, leaks: Leaks
) -> None:
    """Without the engine, warm functions answer, a cold call is held, no function counts as
    failing, and /readyz has the reason."""
    model = models.add_one(tmp_path).read_bytes()
    with OwnEngine() as own, TemporaryDirectory(prefix="fn-") as data:
        own.load(runtime_image)
        settings = {"docker_host": own.url, "image_cpu": runtime_image, "cpu_slots": 2}
        async with serving(Path(data), kind=OnDocker, **settings) as server:
            await server.deploy({"m.onnx": model}, name="warm")
            await server.deploy({"m.onnx": model}, name="cold")
            assert (await server.call("warm", BODY)).status == 200
            statuses: list[int] = []
            load = asyncio.ensure_future(keep_calling(server, statuses))

            own.kill()
            await server.until_pools(lambda: bool(server.server.manager.engine_down))
            held = asyncio.ensure_future(server.call("cold", BODY))
            before = len(statuses)
            async with asyncio.timeout(UNTIL_S):
                while len(statuses) < before + 50:
                    await server.get("/healthz")
            ready = await server.readiness()
            own.start()
            cold = await held
            load.cancel()
            shown = await server.admin("GET", "/functions/cold")

        assert set(statuses) == {200}
        assert cold.status == 200
        assert ready.status == 200
        assert any(reason.startswith("engine: ") for reason in ready.json()["reasons"])
        assert shown.json()["state"] == "warm"


async def test_a_missing_image_is_the_reason_that_callers_get(
    tmp_path: Path, engine: str, runtime_image: str
) -> None:
    """If the image was removed while the server runs, callers get the reason and what to do."""
    with TemporaryDirectory(prefix="fn-") as data, connected(engine) as client:
        name = f"fngate-gone-{Path(data).name.replace('_', 'x')}"
        client.images.get(runtime_image).tag(name)
        model = models.add_one(tmp_path).read_bytes()
        settings = {"docker_host": engine, "image_cpu": name, "standbys": 0}
        async with serving(Path(data), kind=OnDocker, **settings) as server:
            await server.deploy({"m.onnx": model}, name="digits")
            await server.admin("POST", "/functions/digits/sleep")
            await server.until_pools(lambda: not server.server.manager.replicas())
            client.images.remove(name, noprune=True)
            answer = await server.call("digits", BODY, Prefer="wait=20")

        assert answer.status == 503
        assert "No such image" in str(answer.json())
        assert "fnctl image build" in str(answer.json())


def on_engine(url: str, owner: str) -> tuple[set[str], set[str]]:
    """Return the replicas and the network holders of an owner."""
    with connected(url) as client:
        listed = owned(client.api, owner)
    replicas = {replica_id(one) for one in listed if replica_id(one)}
    return replicas, {one["Id"] for one in listed if holder_number(one)}


def settled(server: ServerProcess, engine: str, owner: str) -> tuple[set[str], set[str]]:
    """Return an owner's containers once the trials have ended and each function has one."""
    for _ in range(200):
        listed = server.fnctl_json("ls")["items"]
        found = on_engine(engine, owner)
        if len(found[0]) == 2 and all(one["ready"] == 1 for one in listed):
            break
    return found


def test_killed_servers_do_not_touch_each_other(engine: str, runtime_image: str) -> None:
    """Two servers share an engine; one is killed and restarted under calls to the other. Each
    adopts its own containers and removes them at its end."""
    environment = {
        "FN_DRIVER": "docker",
        "FN_DOCKER_HOST": engine,
        "FN_IMAGE_CPU": runtime_image,
        "FN_CPU_SLOTS": "2",
    }
    with TemporaryDirectory(prefix="fn-") as first, TemporaryDirectory(prefix="fn-") as second:
        killed = ServerProcess(Path(first), environment=environment)
        other = ServerProcess(Path(second), environment=environment)
        owners = [spec.owner_name(Path(data)) for data in (first, second)]
        model = models.add_one(Path(first))
        for server in (killed, other):
            server.start()
            assert (
                server.fnctl("deploy", str(model), "--name", "digits", "--min", "1").returncode == 0
            )
        before = [
            settled(server, engine, owner)
            for server, owner in zip((killed, other), owners, strict=True)
        ]

        killed.kill()
        killed.start()
        called = killed.fnctl("invoke", "digits", "-d", '{"inputs": {"x": [[1, 2, 3, 4]]}}')
        after = [on_engine(engine, owner) for owner in owners]
        codes = [killed.stop(), other.stop()]
        left = [on_engine(engine, owner) for owner in owners]

        assert called.returncode == 0, called.stderr
        assert before[0][0] <= after[0][0]
        assert before[1][0] <= after[1][0]
        assert codes == [0, 0]
        assert left == [(set(), set()), (set(), set())]
