"""Contract tests of the Docker driver alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.drivers.docker.spec import HOLDER, REPLICA
from pool_manager.drivers.environment import STANDBY_CAP_MIB
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from runtime_image.contract.model import ModelSpec
from tests.support.containers import Containers
from tests.support.replicas import binding, pool_settings
from tests.support.scenes import JSON_RULES, Engine, Scenes, a_record, docker_settings

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NEVER_S = 1000.0
UNUSED_CARDS = {"tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0"}
"""Interfaces that some kernels create in every network namespace, down and without address."""


@pytest.fixture
def shown(engine: str, settings: PoolSettings) -> Iterator[Containers]:
    """Containers on the engine; none may remain after the test."""
    made = Containers(engine, settings)
    yield made
    left = made.replicas(), made.holders()
    made.wipe()
    made.close()
    assert left == ({}, set())


@pytest.fixture
def apart(shown: Containers, engine: str, runtime_image: str, settings: PoolSettings) -> Engine:
    """Engine of the driver under test, beside the view of `shown`."""
    return Engine(engine, runtime_image)


@pytest.fixture
async def stages(
    apart: Engine, settings: PoolSettings, bundle: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Factory of scenes with settings of their own."""
    made: list[Scenes] = []

    def make(**times: float) -> Scenes:
        made.append(Scenes("docker", settings, bundle, apart, **times))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_a_missing_image_is_named(
    apart: Engine, shown: Containers, settings: PoolSettings, tmp_path: Path
) -> None:
    """If the image was removed while the server runs, each start fails with the command that builds
    it."""
    name = f"fngate-gone-{settings.run_dir.parent.name.replace('_', 'x')}"
    shown.api.tag(apart.image, name)
    driver = await DockerDriver.open(docker_settings(replace(apart, image=name), settings))
    shown.api.remove_image(name)
    (settings.model_dir / a_record().id).mkdir(parents=True)

    with pytest.raises(DriverError) as failed:
        await driver.start(a_record(), tmp_path, tmp_path / "log")

    assert "No such image" in failed.value.message
    assert name in failed.value.message
    assert failed.value.message.endswith("; build it: fnctl image build cpu, or gpu")
    await driver.close()


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("kill", "was killed by SIGKILL"),
        ("stop", "exited with code 0"),
        ("remove", "was killed by SIGKILL"),
    ],
)
async def test_an_end_from_outside_is_reported_once(
    stages: Callable[..., Scenes], shown: Containers, end: str, how: str
) -> None:
    """A container that an operator kills, stops or removes is reported once, with the right
    cause."""
    stage = await stages().ready("aaaa0001")
    id = shown.replicas()["aaaa0001"]
    ends = {
        "kill": lambda: shown.api.kill(id),
        "stop": lambda: shown.api.stop(id),
        "remove": lambda: shown.api.remove_container(id, force=True),
    }

    await asyncio.to_thread(ends[end])
    told = await stage.exit("aaaa0001")
    lists = [await stage.driver.list(), await stage.driver.list()]
    await stage.release("aaaa0001")

    assert told == how
    assert stage.exits == [("aaaa0001", how)]
    assert lists == [set(), set()]


async def test_a_saved_log_outlives_its_container(
    stages: Callable[..., Scenes], shown: Containers
) -> None:
    """A saved log stays although the container was removed."""
    stage = await stages().ready("aaaa0001", handler="talks.py", inputs=JSON_RULES)
    before = await stage.output("digits", b"19999 " + b"-" * 40 + b"\n")

    shown.api.remove_container(shown.replicas()["aaaa0001"], force=True)
    await stage.exit("aaaa0001")
    await stage.release("aaaa0001")

    [(_, after)] = await stage.launcher.output.kept("digits")
    assert after == before
    assert len(after) <= stage.settings.log_bytes


async def test_a_paused_replica_is_given_up(apart: Engine, bundle: Path) -> None:
    """A paused container answers no PING, is reported as lost, and can be released."""
    with pool_settings(ping_s=0.3) as settings:
        scenes, shown = Scenes("docker", settings, bundle, apart), Containers(apart.url, settings)
        stage = await scenes.ready("aaaa0001")

        shown.api.pause(shown.replicas()["aaaa0001"])
        lost = await stage.next(events.Lost)
        listed = await stage.driver.list()
        await stage.release("aaaa0001")

        assert lost.reason == "control link lost: did not answer 3 PINGs"
        assert listed == {"aaaa0001"}
        assert shown.replicas() == {}
        await scenes.close()
        shown.close()


async def test_an_out_of_memory_kill_names_the_cap(stages: Callable[..., Scenes]) -> None:
    """A request that exceeds the memory cap is reported as out of memory, with the cap."""
    stage = await stages().stage()
    spec = ModelSpec("digits@1", handler="eats.py", inputs=JSON_RULES)
    await stage.ready("aaaa0001", replace(binding(spec), memory_mib=200))
    link = await stage.link("aaaa0001")

    link.request(1)
    await link.lost
    lost = await stage.next(events.Lost)

    reasons = [lost.reason]
    if "memory cap" not in lost.reason:  # the loss of the link may be reported first
        reasons.append((await stage.next(events.Lost)).reason)
    assert "ran out of memory and was killed by SIGKILL (its memory cap is 200 MiB)" in reasons
    await link.close()


async def test_a_bound_standby_gets_the_limits_and_name_of_its_function(
    stages: Callable[..., Scenes], shown: Containers
) -> None:
    """A bound standby gets memory limit, CPU limit and name of its function shortly afterwards."""
    stage = await stages(limit_after_s=0.0).stage()
    await stage.standby("aaaa0001")
    before = shown.inspect("aaaa0001")

    stage.assign("aaaa0001", binding(memory_mib=300))
    await stage.next(events.Loaded)
    await shown.until(lambda: shown.memory_mib("aaaa0001") == 300)
    await shown.until(lambda: "digits-1" in shown.inspect("aaaa0001")["Name"])

    host = shown.inspect("aaaa0001")["HostConfig"]
    tag = shown.owner.name[:4]
    assert before["HostConfig"]["Memory"] == STANDBY_CAP_MIB["cpu"] * 2**20
    assert before["Name"] == f"/fngate-standby-aaaa0001-{tag}"
    assert shown.inspect("aaaa0001")["Name"] == f"/fngate-digits-1-aaaa0001-{tag}"
    assert (host["Memory"], host["MemorySwap"]) == (300 * 2**20, 300 * 2**20)
    assert (host["CpuPeriod"], host["CpuQuota"]) == (100_000, 100_000)


async def test_a_standbys_memory_is_raised_before_the_load(
    stages: Callable[..., Scenes], shown: Containers
) -> None:
    """A model that may need more memory than a standby has gets it before its load begins."""
    stage = await stages(limit_after_s=NEVER_S).stage()
    await stage.standby("aaaa0001")

    stage.assign("aaaa0001", binding(memory_mib=STANDBY_CAP_MIB["cpu"] + 1000))
    await stage.next(events.Loaded)

    assert shown.memory_mib("aaaa0001") == STANDBY_CAP_MIB["cpu"] + 1000


async def test_pending_limits_survive_a_restart(
    stages: Callable[..., Scenes], shown: Containers, settings: PoolSettings, bundle: Path
) -> None:
    """If a server ends between binding and limits, the next one sets the limits."""
    earlier = await stages(limit_after_s=NEVER_S).stage()
    await earlier.standby("aaaa0001")
    earlier.assign("aaaa0001", binding(memory_mib=300))
    await earlier.next(events.Loaded)
    await earlier.abandon()
    owed = shown.memory_mib("aaaa0001")

    later = await stages(limit_after_s=0.0).stage()
    record = later.launcher.folders.read_records()["aaaa0001"]
    assert record is not None
    later.launcher.adopt(record, "digits")
    await shown.until(lambda: shown.memory_mib("aaaa0001") == 300)

    assert owed == STANDBY_CAP_MIB["cpu"]
    await later.release("aaaa0001")


async def test_replicas_have_no_network_and_share_none(
    stages: Callable[..., Scenes], shown: Containers
) -> None:
    """Each replica has its own network namespace with only a loopback device, whether it was
    prepared in advance or not."""
    stage = await stages().stage()
    await shown.until(lambda: len(shown.holders()) == 2)
    for number in range(1, 4):
        await stage.ready(f"aaaa000{number}")

    containers = [shown.inspect(id) for id in shown.replicas()]
    modes = [one["HostConfig"]["NetworkMode"].partition(":")[0] for one in containers]
    pids = [one["State"]["Pid"] for one in containers]
    assert modes.count("container") >= 2
    assert len({namespace(pid) for pid in (*pids, "self")}) == 4
    assert {card for pid in pids for card in cards(pid)} == {"lo"}


def namespace(pid: object) -> Path:
    """Return the network namespace of a process; abstract sockets are reachable only within one."""
    return Path(f"/proc/{pid}/ns/net").readlink()


def cards(pid: int) -> list[str]:
    """Return the network devices of a process that lead anywhere, and its loopback."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    names = [line.partition(":")[0].strip() for line in lines]
    return [name for name in names if name not in UNUSED_CARDS]


async def test_holders_are_renewed_and_removed(
    stages: Callable[..., Scenes], shown: Containers
) -> None:
    """Two holders are ready; used and ended ones are replaced; all are removed with the driver."""
    stage = await stages(refill_after_s=0.0).stage()
    await shown.until(lambda: len(shown.holders()) == 2)
    first = shown.holders()
    await stage.ready("aaaa0001")
    await shown.until(lambda: len(shown.holders()) == 2 and shown.holders() != first)

    second = shown.holders()
    for holder in second:
        shown.api.kill(holder)
    await shown.until(lambda: len(shown.holders() - second) == 2)
    for _ in range(5):
        await stage.driver.list()

    assert len(shown.holders()) == 2


async def test_only_own_leftovers_are_removed(
    stages: Callable[..., Scenes], shown: Containers, apart: Engine
) -> None:
    """Containers and holders left by a killed server are removed by its next run; those of other
    servers stay."""
    with pool_settings() as other:
        theirs = Containers(apart.url, other)
        for containers in (shown, theirs):
            holder = containers.leave(apart.image, {HOLDER: "1"})
            containers.api.start(holder)
            containers.leave(apart.image, {REPLICA: "aaaa0001"})
            ended = containers.leave(apart.image, {REPLICA: "aaaa0002"}, Cmd=["0"])
            containers.api.start(ended)
            containers.api.wait(ended)
        mine = shown.holders()

        stage = await stages().stage()
        await shown.until(lambda: not shown.replicas() and not mine & shown.holders())

        assert await stage.driver.list() == set()
        assert (len(theirs.replicas()), len(theirs.holders())) == (2, 1)
        theirs.wipe()
        theirs.close()


async def test_a_start_in_progress_ends_before_its_release(
    stages: Callable[..., Scenes], shown: Containers
) -> None:
    """A release during a start leaves no container."""
    stage = await stages().stage()
    stage.launch("aaaa0001")
    await shown.until(lambda: "aaaa0001" in shown.replicas())

    await stage.driver.release("aaaa0001")

    assert "aaaa0001" not in shown.replicas()


async def test_lists_do_not_disturb_starts(stages: Callable[..., Scenes]) -> None:
    """Concurrent lists interrupt no start and remove no holder that a start uses."""
    stage = await stages(refill_after_s=0.0).stage()
    listed: list[set[str]] = []

    async def keep_listing() -> None:
        while True:
            listed.append(await stage.driver.list())

    listing = stage.tasks.spawn("listing", keep_listing())
    for number in range(1, 5):
        await stage.ready(f"aaaa000{number}")
    await stage.release("aaaa0002")
    listing.cancel()

    assert await stage.driver.list() == {"aaaa0001", "aaaa0003", "aaaa0004"}
    assert [id for id, _ in stage.exits] == ["aaaa0002"]
    assert len(listed) > 5


async def test_closing_early_leaves_nothing(
    stages: Callable[..., Scenes], shown: Containers, apart: Engine, settings: PoolSettings
) -> None:
    """A driver closed while it creates networks leaves none, and can be closed twice."""
    driver = await DockerDriver.open(docker_settings(apart, settings))
    await driver.list()

    await driver.close()
    await driver.close()

    assert shown.holders() == set()
    with pytest.raises(DriverError, match="the driver is closed"):
        await driver.list()
