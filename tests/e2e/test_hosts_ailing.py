"""Tests of hosts with one fault: it is reported, and the other hosts are not affected."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.chaos.calls import client
from tests.support.caller import Answer, Caller
from tests.support.container_server import ContainerServer, container_server
from tests.support.fleet.fleet import Fleet, open_fleet
from tests.support.fleet.host import Host, Plan
from tests.support.fleet.served import hosts, is_host_ready, join, leave, until_host
from tests.support.leaks import Leaks
from tests.support.nvml.board import Gpu
from tests.support.sshd import SFTP

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

AHEAD_S = 120.0
OFF_S = 1.0
"""Largest error of the measured difference of clocks."""
SOUND, SKEWED, NARROW = "gpu2", "gpu3", "gpu4"
PLANS = (
    Plan(disk_mib=4096, gpus=(Gpu("GPU-sound"),)),
    Plan(disk_mib=4096, clock_s=AHEAD_S),
    Plan(disk_mib=4096, sshd=("MaxSessions 2", SFTP)),
)
HANDLER = b"""
import socket, time

def predict(inputs, ctx):
    return {"y": inputs["x"], "wall_s": time.time()}
"""
MANIFEST = """schema = 1
name = "{name}"
[runtime]
engine = "python"
[device]
host = {{ host = "{host}" }}
[input.x]
kind = "json"
"""


@pytest.fixture(scope="module")
def fleet(runtime_image: str) -> Iterator[Fleet]:
    with open_fleet(*PLANS, images=(runtime_image,)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, engine: str, runtime_image: str, fleet: Fleet
) -> Iterator[ContainerServer]:
    data = tmp_path_factory.mktemp("server") / "data"
    with container_server(data, engine, runtime_image, FN_STANDBYS="0", FN_PING_S="1") as server:
        yield server


@pytest.fixture
async def caller(server: ContainerServer) -> AsyncIterator[Caller]:
    async with client(server) as caller:
        yield caller


@pytest.fixture
def restarts(leaks: Leaks) -> None:
    """Accept new processes and pipes of hosts that the module ends."""
    for text in ("nsenter", "unshare", "python", "pipe:"):
        leaks.exclude(text, reason="of a host, which outlives the test")


@pytest.fixture
async def sound(fleet: Fleet, caller: Caller) -> AsyncIterator[Host]:
    """A host without fault, in the list."""
    await join(caller, fleet[SOUND])
    yield fleet[SOUND]
    await leave(caller, fleet[SOUND])


async def deploy(caller: Caller, name: str, host: str) -> None:
    manifest = MANIFEST.format(name=name, host=host)
    await caller.deploy({"handler.py": HANDLER}, name=name, manifest=manifest)


async def answers(caller: Caller, name: str, count: int = 20) -> list[float]:
    """Call a function; return what each of its answers says of the time there."""
    called = [caller.call(name, {"inputs": {"x": number}}) for number in range(count)]
    found = []
    for number, answer in enumerate(await asyncio.gather(*called)):
        assert answer.status == 200, answer.body
        outputs = answer.json()["outputs"]
        assert outputs["y"] == number
        found.append(outputs["wall_s"])
    return found


async def remove(caller: Caller, *names: str) -> None:
    for name in names:
        assert (await caller.admin("DELETE", f"/functions/{name}")).status < 300


def phases_ms(answer: Answer) -> dict[str, float]:
    """Return the durations of a call's Server-Timing."""
    header = answer.headers["Server-Timing"]
    found = re.findall(r"(\w+)(?:;desc=\"[^\"]*\")?;dur=(-?[\d.]+)", header)
    return {name: float(value) for name, value in found}


async def test_a_clock_two_minutes_ahead_is_reported_and_harmless(
    server: ContainerServer, caller: Caller, fleet: Fleet
) -> None:
    """Calls are answered, no phase of a cold start is measured with two clocks, and the difference
    is shown."""
    await join(caller, fleet[SKEWED])
    await deploy(caller, "skewed", SKEWED)
    began_s = time.monotonic()
    first = await caller.call("skewed", {"inputs": {"x": 1}})
    took_ms = (time.monotonic() - began_s) * 1e3
    times = await answers(caller, "skewed")
    now_s = time.time()
    shown = (await hosts(caller))[SKEWED]
    text = await asyncio.to_thread(server.fnctl, "host", "show", SKEWED)
    await remove(caller, "skewed")
    await leave(caller, fleet[SKEWED])

    assert first.status == 200, first.body
    assert all(0 <= each <= took_ms for each in phases_ms(first).values()), first.headers
    assert abs(min(times) - AHEAD_S - now_s) < 60
    assert abs(shown["clock_offset_s"] - AHEAD_S) < OFF_S
    assert "120 s ahead" in shown["reason"], shown
    assert "120 s ahead" in text.stdout, text.stdout


async def test_a_full_disk_is_reported_and_the_other_host_works(
    server: ContainerServer, caller: Caller, fleet: Fleet, sound: Host
) -> None:
    """What needs room there is refused with the reason; what runs there and on others goes on."""
    full = fleet[NARROW]
    await join(caller, full)
    await deploy(caller, "before", NARROW)
    await deploy(caller, "elsewhere", SOUND)
    await answers(caller, "before")
    free = await asyncio.to_thread(full.fill_disk)
    try:
        shown = await until_host(caller, NARROW, lambda one: one["disk_free_mib"] < 16)
        text = await asyncio.to_thread(server.fnctl, "host", "ls")
        ready = (await caller.readiness()).json()
        await answers(caller, "elsewhere")
        await answers(caller, "before")
    finally:
        await asyncio.to_thread(free)
    await until_host(caller, NARROW, lambda one: not one["reason"])
    await deploy(caller, "after", NARROW)
    await answers(caller, "after")
    await remove(caller, "before", "elsewhere", "after")
    await leave(caller, full)

    assert "disk" in shown["reason"], shown
    assert "disk" in text.stdout, text.stdout
    assert f"host {NARROW}: up: its disk is full" in str(ready)


async def test_a_dead_engine_is_reported_and_its_replicas_serve_on(
    server: ContainerServer, caller: Caller, fleet: Fleet, sound: Host, restarts: None
) -> None:
    """Replicas on the host answer without its engine, new ones go elsewhere, and it heals."""
    host = fleet[NARROW]
    await join(caller, host)
    await deploy(caller, "warm", NARROW)
    await answers(caller, "warm")
    await asyncio.to_thread(host.dockerd.kill)
    shown = await until_host(caller, NARROW, lambda one: "engine" in one["reason"])
    text = await asyncio.to_thread(server.fnctl, "host", "ls")
    ready = (await caller.readiness()).json()
    await answers(caller, "warm")
    await deploy(caller, "elsewhere", SOUND)
    await answers(caller, "elsewhere")
    await asyncio.to_thread(host.dockerd.start)
    await until_host(caller, NARROW, lambda one: is_host_ready(one) and not one["reason"])
    await answers(caller, "warm")
    await deploy(caller, "after", NARROW)
    await answers(caller, "after")
    await remove(caller, "warm", "elsewhere", "after")
    await leave(caller, host)

    assert NARROW in text.stdout
    assert shown["reason"] in text.stdout
    assert shown["reason"].startswith("its container engine does not answer: ")
    assert str(server.data) not in shown["reason"], "a socket of this machine"
    assert f"host {NARROW}: up: its container engine does not answer" in str(ready)


async def test_an_sshd_with_two_sessions_is_enough(
    server: ContainerServer, caller: Caller, fleet: Fleet, sound: Host
) -> None:
    """With MaxSessions 2 files are sent, replicas start and calls are answered; the checks pass,
    also while the host is in use."""
    await join(caller, fleet[NARROW])
    for name in ("one", "two"):
        await deploy(caller, name, NARROW)
    checks = await caller.admin("POST", f"/hosts/{NARROW}/check")
    found = await asyncio.gather(answers(caller, "one"), answers(caller, "two"))
    await remove(caller, "one", "two")
    await leave(caller, fleet[NARROW])

    assert [len(one) for one in found] == [20, 20]
    failed = [one for one in checks.json()["items"] if one["level"] == "fail"]
    assert not [one for one in failed if "nvidia" not in one["name"].lower()], failed
