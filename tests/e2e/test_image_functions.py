"""Tests of images as functions through a whole server over containers: a server of ours and
applications of others, from zero, warm, killed, adopted, asleep, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pool_manager.drivers.docker.spec import FUNCTION, PART, SERVER, SIDECAR
from tests.chaos.footprint import until
from tests.support.app_images import App, apps
from tests.support.container_server import ContainerServer, container_server
from tests.support.doses import amount
from tests.support.engine import connected as engine_client
from tests.support.leaks import Leaks
from tests.support.raw_http import Got, ask, connected, request
from tests.support.web_servers import web_image_tag

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

NAMES = ("web", "asgi", "nginx", "nginx-33", "prometheus")
UNTIL_S = 60.0
CALLS = 8
CYCLES = amount(1, 5)
KILLS = amount(
    [("asgi", SERVER), ("nginx", SIDECAR)],
    [(name, part) for name in NAMES for part in (SERVER, SIDECAR)],
)
ESTABLISHED = "01"
"""State of a connection in /proc/PID/net/tcp (proc_pid_net(5))."""
WEB = """
port = 8000
ready = "/"
[server.env]
GREETING = "at ${PORT}"
"""


@pytest.fixture(scope="module")
def made(engine: str, runtime_image: str) -> dict[str, App]:
    """The servers by name."""
    web = App("web", web_image_tag(engine, runtime_image), "/facts", b'"GREETING": "at 8000"', WEB)
    return {"web": web, **apps(engine)}


@pytest.fixture(scope="module")
def server(
    engine: str,
    runtime_image: str,
    made: dict[str, App],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ContainerServer]:
    """A server with all functions. It leaves nothing on the engine, though some are warm."""
    folder = tmp_path_factory.mktemp("images")
    variables = {"FN_CPU_SLOTS": str(len(NAMES)), "FN_STANDBYS": "0"}
    with container_server(folder / "data", engine, runtime_image, **variables) as server:
        bundles = [app.bundle(folder) for app in made.values()]
        with ThreadPoolExecutor() as threads:
            done = list(threads.map(lambda one: server.fnctl("deploy", str(one)), bundles))
        assert [one.returncode for one in done] == [0] * len(done), [one.stderr for one in done]
        assert not [one.stdout for one in done if "memory  0 MiB" in one.stdout]
        yield server
        complaints = list(server.complaints)
        assert server.stop() == 0
        assert server.everything() == []
    assert complaints == []


@pytest.fixture
def life(server: ContainerServer, engine: str) -> Life:
    """The functions' life."""
    return Life(server, engine)


class Life:
    """Calls of functions, and the containers that answer."""

    def __init__(self, server: ContainerServer, engine: str) -> None:
        self.server = server
        self._engine = engine

    @property
    def port(self) -> int:
        """The server's port."""
        port = urlsplit(self.server.url).port
        assert port is not None
        return port

    async def call(self, app: App, method: str = "GET") -> Got:
        """Call a function."""
        return await ask(self.port, method, f"/fn/{app.name}{app.path}", seconds=UNTIL_S)

    async def answers(self, app: App) -> None:
        """Call a function, which must answer."""
        got = await self.call(app)
        assert (got.status, got.end) == (200, "whole"), got
        assert app.says in got.body

    def containers(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the containers of a function by part."""
        found = {}
        for one in self.server.everything():
            labels = one["Config"]["Labels"]
            if labels.get(FUNCTION, "").startswith(f"default/{name}@"):
                found[labels[PART]] = one
        return found

    def ids(self, name: str) -> dict[str, str]:
        """Return the ids of its containers by part."""
        return {part: one["Id"] for part, one in self.containers(name).items()}

    async def put_to_sleep(self, name: str) -> None:
        """Put a function to sleep; its containers must be removed. A replica that has just been
        called stays awake, so the request is repeated."""
        async with self.server.session() as http:

            async def is_over() -> bool:
                async with http.post(f"/admin/v1/functions/{name}/sleep") as answer:
                    assert answer.status == 200, await answer.text()
                return not await asyncio.to_thread(self.containers, name)

            assert await until(is_over, UNTIL_S), self.ids(name)

    def stop(self, container: str) -> None:
        """Stop the processes of a container. Unlike those of a paused one, none of them runs once
        more when it is killed."""
        with engine_client(self._engine) as client:
            shown = client.api.top(container)
        for row in shown["Processes"]:
            os.kill(int(row[shown["Titles"].index("PID")]), signal.SIGSTOP)

    def kill(self, container: str) -> None:
        """Kill a container."""
        with engine_client(self._engine) as client:
            client.api.kill(container)


def unread(pid: int) -> int:
    """Return how many connections in the network of a process hold bytes that it has not read."""
    folder = Path(f"/proc/{pid}/net")
    tables = [path.read_text() for path in (folder / "tcp", folder / "tcp6") if path.exists()]
    rows = [row.split() for table in tables for row in table.splitlines()[1:]]
    return sum(row[3] == ESTABLISHED and not row[4].endswith(":00000000") for row in rows)


@pytest.mark.parametrize("name", NAMES)
async def test_an_image_from_zero_to_zero(life: Life, made: dict[str, App], name: str) -> None:
    """The first calls start one pair of containers, which answers further calls; nothing of it is
    on the host's disk, and it is gone when the function sleeps."""
    app = made[name]
    await life.put_to_sleep(name)
    for _ in range(CYCLES):
        await asyncio.gather(*(life.answers(app) for _ in range(CALLS)))
        pair = life.containers(name)
        await life.answers(app)

        assert set(pair) == {SIDECAR, SERVER}
        assert life.ids(name) == {part: one["Id"] for part, one in pair.items()}
        assert "volume" not in [kind["Type"] for kind in pair[SERVER]["Mounts"]]
        await life.put_to_sleep(name)


async def test_an_idle_image_sleeps_and_its_log_stays(life: Life, made: dict[str, App]) -> None:
    """The log has what the server wrote from its first word to its last, at the signal that the
    image names."""
    await life.answers(made["web"])
    scale = life.server.fnctl
    assert scale("scale", "web", "--idle", "0.2").returncode == 0

    async def is_over() -> bool:
        return not await asyncio.to_thread(life.containers, "web")

    assert await until(is_over, UNTIL_S), "a container of an idle replica is still there"
    log = life.server.fnctl("logs", "web").stdout
    assert "hello from the server" in log
    assert "fngate: GET /: 200 OK" in log
    assert "bye at SIGUSR1" in log
    assert scale("scale", "web", "--idle", "300").returncode == 0


@pytest.mark.parametrize(("name", "part"), KILLS)
async def test_calls_outlive_a_container(
    life: Life, made: dict[str, App], name: str, part: str
) -> None:
    """Of the calls that a killed container leaves without an answer, those that may be sent twice
    are answered by another pair, and the others fail; further calls are answered."""
    app = made[name]
    await life.answers(app)
    before = life.containers(name)
    server = before[SERVER]
    await asyncio.to_thread(life.stop, server["Id"])
    calls = [asyncio.ensure_future(life.call(app, method)) for method in ("GET", "POST")]

    async def are_sent() -> bool:
        return unread(server["State"]["Pid"]) == len(calls)

    sent = await until(are_sent, UNTIL_S)
    await asyncio.to_thread(life.kill, before[part]["Id"])
    got, posted = await asyncio.gather(*calls)
    assert sent

    assert (got.status, app.says in got.body) == (200, True), got
    assert posted.status == 502, posted
    assert posted.code in ("replica_died", "upstream_failed")
    await life.answers(app)

    async def is_replaced() -> bool:
        after = await asyncio.to_thread(life.ids, name)
        is_old = {one["Id"] for one in before.values()} & set(after.values())
        return set(after) == {SIDECAR, SERVER} and not is_old

    assert await until(is_replaced, UNTIL_S), life.ids(name)


async def test_images_outlive_the_gateway(life: Life, made: dict[str, App], leaks: Leaks) -> None:
    """The next server adopts all their containers; a stream of the killed gateway has ended for its
    client and for the application, and the answers are warm."""
    leaks.exclude("fnctl", reason="the next server lives as long as the module")
    leaks.exclude("pipe:", reason="the log of the next server")
    await asyncio.gather(*(life.answers(app) for app in made.values()))
    before = {name: life.ids(name) for name in NAMES}
    async with connected(life.port) as connection:
        await connection.send(request("GET", "/fn/asgi/events"))
        await connection.reader.readuntil(b"data: tick\n\n")
        life.server.kill()
        streamed = await connection.rest()
    life.server.start()

    await asyncio.gather(*(life.answers(app) for app in made.values()))

    assert not streamed.endswith(b"0\r\n\r\n")
    assert {name: life.ids(name) for name in NAMES} == before

    async def is_over() -> bool:
        return (await life.call(made["asgi"])).body.endswith(b" 0 streams")

    assert await until(is_over, UNTIL_S)
