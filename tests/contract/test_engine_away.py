"""Contract tests of the Docker driver while its engine is away, hangs, and returns."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.drivers.docker.spec import SERVER, SIDECAR
from pool_manager.ports import ServerContainer
from pool_manager.settings import PoolSettings
from registry.errors import EngineDown
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from tests.support.containers import UNTIL_S, Containers
from tests.support.freezing import frozen
from tests.support.leaks import Leaks
from tests.support.own_engine import OwnEngine
from tests.support.replicas import Stage, binding
from tests.support.scenes import JSON_RULES, Engine, Scenes, a_record
from tests.support.sidecar_process import Gateway, ask
from tests.support.web_servers import ID, ends, make_web_image

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.usefixtures("forgotten_sockets"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BRIDGE = "172.31.250.1/28"
"""Address of the engine's bridge, which is in a network of its own."""
MENDS = "; sudo systemctl restart docker"


@pytest.fixture(scope="module")
def own(runtime_image: str) -> Iterator[OwnEngine]:
    with OwnEngine("--bridge=", f"--bip={BRIDGE}") as engine:
        engine.load(runtime_image)
        yield engine


@pytest.fixture(autouse=True)
def others(own: OwnEngine, leaks: Leaks) -> None:
    """Exclude the module's engine, which tests restart, from the leak check."""
    leaks.exclude("dockerd", reason="the module's engine was started again in the test")


@pytest.fixture
def shown(own: OwnEngine, settings: PoolSettings) -> Iterator[Containers]:
    made = Containers(own.url, settings)
    yield made
    left = made.replicas(), made.holders()
    made.wipe()
    made.close()
    assert left == ({}, set())


@pytest.fixture
async def stages(
    shown: Containers, own: OwnEngine, runtime_image: str, settings: PoolSettings, bundle: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Factory of stages whose driver has timeouts of its own."""
    made: list[Scenes] = []

    async def make(**times: float) -> Stage:
        made.append(Scenes("docker", settings, bundle, Engine(own.url, runtime_image), **times))
        return await made[-1].stage()

    yield make
    for one in made:
        await one.close()


class Losses:
    """Records the engine losses that a driver reports."""

    def __init__(self, stage: Stage) -> None:
        self.reasons: list[str] = []
        self._came = asyncio.Event()
        stage.driver.engine_losses.subscribe(self._lost)

    def _lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self._came.set()

    async def one(self) -> None:
        await asyncio.wait_for(self._came.wait(), UNTIL_S)


async def back(stage: Stage) -> set[str]:
    """List replicas until the engine answers again, as the manager does."""
    async with asyncio.timeout(UNTIL_S):
        while True:
            try:
                return await stage.driver.list()
            except EngineDown:
                pass


async def test_replicas_serve_while_the_engine_is_dead(
    stages: Callable[..., Any], own: OwnEngine
) -> None:
    """Links keep working, the loss is reported once with its remedy, and no replica is lost on
    return."""
    stage = await stages()
    losses = Losses(stage)
    await stage.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    own.kill()
    answer = await link.call(1)
    await losses.one()
    with pytest.raises(EngineDown) as failed:
        await stage.driver.list()
    own.start()
    running = await back(stage)
    later = await link.call(2)

    assert (answer.kind, later.kind) == (Kind.RESPONSE, Kind.RESPONSE)
    assert losses.reasons[0].endswith(MENDS)
    assert len(losses.reasons) == 1
    assert failed.value.message.endswith(MENDS)
    assert running == {"aaaa0001"}
    assert stage.exits == []
    await link.close()


async def test_an_end_during_the_loss_is_reported(
    stages: Callable[..., Any], own: OwnEngine
) -> None:
    """A replica that ended while the engine was away is reported after the return, with its exit
    code."""
    stage = await stages()
    losses = Losses(stage)
    spec = ModelSpec("digits@1", handler="dies.py", inputs=JSON_RULES)
    await stage.ready("aaaa0001", binding(spec))
    link = await stage.link("aaaa0001")

    own.kill()
    await losses.one()
    link.request(1)
    await link.lost
    own.start()
    running = await back(stage)

    assert await stage.exit("aaaa0001") == "exited with code 3"
    assert running == set()
    await link.close()


@pytest.mark.parametrize("part", [SIDECAR, SERVER])
async def test_a_pair_serves_while_the_engine_is_dead(
    stages: Callable[..., Any], own: OwnEngine, shown: Containers, runtime_image: str, part: str
) -> None:
    """New exchanges reach the server; the end of either container is reported after the return."""
    stage = await stages()
    image = await asyncio.to_thread(make_web_image, own.url, runtime_image)
    container = ServerContainer(image)
    await stage.ready(ID, binding(ServerSpec("digits@1", (), is_apart=True), container=container))
    gateway = await asyncio.to_thread(Gateway, stage.launcher.folders.data_socket(ID))
    pid = shown.part(ID, part)["State"]["Pid"]
    losses = Losses(stage)

    own.kill()
    answer = await asyncio.to_thread(lambda: ask(gateway.open(1)))
    await losses.one()
    os.kill(pid, signal.SIGKILL)
    if part == SIDECAR:
        await stage.next(events.Lost)
    else:
        await asyncio.to_thread(ends, gateway.taken(1))
    own.start()
    running = await back(stage)

    assert answer == b"hello"
    assert running == set()
    assert (await stage.exit(ID)).startswith(f"lost its {part}, which ")
    await stage.release(ID)
    gateway.close_all()


async def test_a_release_waits_for_the_engine(stages: Callable[..., Any], own: OwnEngine) -> None:
    """A release fails while the engine is away, and succeeds once it is back."""
    stage = await stages()
    await stage.ready("aaaa0001")

    own.kill()
    with pytest.raises(EngineDown):
        await stage.driver.release("aaaa0001")
    own.start()
    await back(stage)
    await stage.release("aaaa0001")

    assert await stage.driver.list() == set()


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_start_interrupted_by_a_loss(
    stages: Callable[..., Any], own: OwnEngine, shown: Containers, steps: int
) -> None:
    """The start fails without blame for the function, and its remains are removed after return and
    release."""
    stage = await stages()
    stage.launch("aaaa0001")
    if steps == 2:
        await shown.until(lambda: "aaaa0001" in shown.replicas())

    own.kill()
    lost = await stage.next(events.Lost)
    own.start()
    await back(stage)
    await stage.release("aaaa0001")

    assert not lost.is_its_fault or "control link lost" in lost.reason
    assert shown.replicas() == {}


async def test_a_server_on_the_engines_network_is_seen_by_others(
    stages: Callable[..., Any], own: OwnEngine, shown: Containers, runtime_image: str
) -> None:
    """By its container's address, unless it listens on the loopback interface; a trial says so."""
    stage = await stages()
    image = await asyncio.to_thread(make_web_image, own.url, runtime_image)
    container = ServerContainer(image, network="egress", env={"LISTEN": "0.0.0.0"})
    spec = ServerSpec("digits@1", (), network="egress", is_apart=True)

    loaded = await stage.ready(ID, binding(spec, container=container), role="trial")
    address = shown.part(ID, SIDECAR)["NetworkSettings"]["IPAddress"]
    fetch = f"import urllib.request as r; print(r.urlopen('http://{address}:8000').read())"
    answer = await asyncio.to_thread(own.run, sys.executable, "-c", fetch)
    await stage.release(ID)

    assert answer == "b'hello'\n"
    assert loaded.report["note"].startswith(
        "local users and other containers can reach the server at 0.0.0.0:8000; one that listens on"
    )


async def test_a_loss_between_the_two_containers_of_a_pair(
    stages: Callable[..., Any], own: OwnEngine, shown: Containers, runtime_image: str
) -> None:
    """A sidecar without a server is no replica; it is removed after return and release."""
    stage = await stages()
    image = await asyncio.to_thread(make_web_image, own.url, runtime_image)
    spec = ServerSpec("digits@1", (), is_apart=True)
    stage.launch(ID, binding(spec, container=ServerContainer(image)))
    await shown.until(lambda: (ID, SIDECAR) in shown.parts())

    own.kill()
    lost = await stage.next(events.Lost)
    own.start()
    running = await back(stage)
    await stage.release(ID)

    assert not lost.is_its_fault or "control link lost" in lost.reason
    assert running <= {ID}
    assert shown.parts() == {}


async def test_limits_are_set_after_the_return(
    stages: Callable[..., Any], own: OwnEngine, shown: Containers
) -> None:
    """A standby bound while the engine dies gets its limits when the engine is back."""
    stage = await stages(limit_after_s=0.0, limit_retry_s=0.01)
    await stage.standby("aaaa0001")

    own.kill()
    stage.assign("aaaa0001", binding(memory_mib=300))
    await stage.next(events.Loaded)
    own.start()
    await shown.until(lambda: shown.memory_mib("aaaa0001") == 300)

    assert stage.exits == []


async def test_a_hung_engine_blocks_no_call(stages: Callable[..., Any], own: OwnEngine) -> None:
    """Every call ends within its timeout, replicas keep serving, and the driver can be closed."""
    stage = await stages()
    await stage.ready("aaaa0001")
    link = await stage.link("aaaa0001")
    # A busy engine needs up to a second.
    impatient = await stages(call_s=1.5, start_s=3.0, close_s=1.0, connect_s=1.5)
    driver = impatient.driver

    # The engine accepts connections and never answers.
    with frozen(own.pid):
        calls = {
            "list": driver.list(),
            "release": driver.release("aaaa0001"),
            "terminate": driver.terminate("aaaa0001"),
            "start": driver.start(a_record(), Path("/nowhere"), Path("/nowhere")),
            "log": driver.save_log("aaaa0001", Path("/nowhere")),
        }
        ended = {name: await outcome(call) for name, call in calls.items()}
        answer = await link.call(1)
        await impatient.abandon()

    assert answer.kind is Kind.RESPONSE
    assert {type(error) for error in ended.values()} == {EngineDown}
    assert all(str(error).endswith(MENDS) for error in ended.values())
    await link.close()


async def outcome(call: Any) -> EngineDown:
    with pytest.raises(EngineDown) as failed:
        async with asyncio.timeout(UNTIL_S):
            await call
    return failed.value


async def test_without_live_restore_all_ends_are_reported(
    runtime_image: str, settings: PoolSettings, bundle: Path
) -> None:
    """If the engine ends with its containers, each replica is reported as ended, and no call
    hangs."""
    with OwnEngine(live_restore=False) as own:
        own.load(runtime_image)
        scenes = Scenes("docker", settings, bundle, Engine(own.url, runtime_image))
        stage = await scenes.stage()
        await stage.ready("aaaa0001")
        await stage.ready("aaaa0002")

        await asyncio.to_thread(own.stop)
        own.start()
        running = await back(stage)
        told = {await stage.exit(id) for id in ("aaaa0001", "aaaa0002")}
        await scenes.close()

    assert running == set()
    assert told <= {"exited with code 0", "was killed by SIGKILL", "was killed by SIGTERM"}
