"""The GPUs of other hosts: names, routes, and reports that are too old."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.calls import BlockingCalls, Unanswered
from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.gpus import memory
from pool_manager.gpus.absent import NoGpus
from pool_manager.gpus.monitor import GpuMonitor
from pool_manager.hosts.agent import STALE_S, AgentReports, RemoteNvml
from pool_manager.hosts.agents import agent_record
from pool_manager.hosts.control import HostControl
from pool_manager.hosts.devices import HostDevices
from pool_manager.ports import GpuView
from pool_manager.settings import PoolSettings
from registry.tasks import Tasks
from runtime_image.contract.agent import HostReport, to_json
from runtime_image.contract.gpus import (
    Ancestor,
    Link,
    NoDriver,
    Reading,
    Snapshot,
    Telemetry,
    XidEvent,
)
from runtime_image.contract.link import VERSION, Kind
from tests.support.blocking import BlockingLink
from tests.support.cluster import Node, one_host
from tests.support.greetings import HELLO
from tests.support.modelled import Clock
from tests.support.replicas import ModelFolder, pool_settings

SENSORS = Telemetry(0.5, 61, None, 412.5, 9_876_543_210, ecc_corrected=3)
GPU = Reading("GPU-a", "0", total_mib=24_000.0, used_mib=400.0, telemetry=SENSORS)
REPORT = HostReport(1, Snapshot("580", (GPU,)), "", False, (), 1.0, 1.0, 2, 3.0, 4.0, 130.0, 6.0)


class Seen(NoGpus):
    """GPUs that say which device they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def view(self, device: str) -> GpuView | None:
        self.asked.append(device)
        return None


def test_devices_of_another_host_have_its_name() -> None:
    """Also in their bank, so that hosts share no memory."""
    link = Link("GPU-a", "GPU-b", Ancestor.NODE)
    gpu = memory.device(GPU, 0.0, Snapshot("580", (GPU,), links=(link,)), "gpu2")
    assert (gpu.id, gpu.bank, gpu.host) == ("gpu2/GPU-a", "gpu2/GPU-a", "gpu2")
    assert gpu.links == (Link("gpu2/GPU-a", "gpu2/GPU-b", Ancestor.NODE),)
    slots = cpu_slots(2, 100.0, "gpu2")
    assert [slot.id for slot in slots] == ["gpu2/cpu:0", "gpu2/cpu:1"]
    assert {(slot.host, slot.bank) for slot in slots} == {("gpu2", "gpu2/cpu")}


async def test_each_device_belongs_to_the_gpus_of_its_host() -> None:
    """Local devices may have slashes in their names. A host that was removed has none."""
    here, there = Seen(), Seen()
    with pool_settings() as settings:
        fleet = one_host(settings, gpus=here)
        node = Node("gpu2", settings, ModelFolder(Path()))
        node.gpus = there
        fleet.add(node)
        for id, host in (("gpu2/GPU-a", "gpu2"), ("MIG-a/1/0", "local"), ("gpu3/GPU-a", "gpu3")):
            assert fleet.gpu_view(Device(id, "cuda", host=host)) is None

    assert there.asked == ["gpu2/GPU-a"]
    assert here.asked == ["MIG-a/1/0"]


async def test_the_gpus_of_another_host_are_known_by_its_name(agent: Agent) -> None:
    """Its driver knows them by their UUIDs."""
    link = await agent.dial("a" * 64)
    await agent.report(link, REPORT)
    calls = BlockingCalls("an agent", limit_s=30.0)
    nvml = RemoteNvml("gpu2", agent.reports)
    gpus = GpuMonitor(nvml, calls, Snapshot("580", (GPU,)), {"GPU-a": 0.0}, "gpu2")
    try:
        assert [one.id for one in gpus.devices()] == ["gpu2/GPU-a"]
        assert (gpus.used_mib("gpu2/GPU-a"), gpus.used_mib("GPU-b")) == (400.0, None)
        await agent.report(link, replace(REPORT, gpus=Snapshot("580", ())))
        assert [one.device for one in await gpus.poll()] == ["gpu2/GPU-a"]
    finally:
        await gpus.close()


class Agent:
    """An agent whose link the test holds."""

    def __init__(self) -> None:
        self.tasks = Tasks("agent")
        self.control = HostControl("gpu2", self.tasks)
        self.clock = Clock()
        self.reports = AgentReports("gpu2", self.clock, lambda: 100.0)
        self.links: list[BlockingLink] = []

    async def dial(self, token: str) -> BlockingLink:
        """Begin to report."""
        self.reports.open(
            token, self.control.register("agent", token, is_agent=True), self.tasks, 60.0
        )
        ours, theirs = socket.socketpair()
        ours.settimeout(30)
        self.control.accept(theirs)
        link = BlockingLink(ours)
        self.links.append(link)
        body = json.dumps({**HELLO, "token": token, "bound": ""}).encode()
        link.send(Kind.HELLO, body=body, aux=VERSION)
        for kind in (Kind.WELCOME, Kind.PING):
            await asyncio.to_thread(link.next, kind)
        return link

    async def report(self, link: BlockingLink, report: HostReport) -> HostReport:
        """Report once."""
        coming = asyncio.create_task(self.reports.next(30.0))
        await asyncio.to_thread(link.next, Kind.PING)
        link.send(Kind.REPORT, body=json.dumps(to_json(report)).encode())
        return await coming


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    made = Agent()
    yield made
    made.reports.close()
    made.control.close()
    await made.tasks.close()
    for link in made.links:
        link.sock.close()


async def test_a_report_is_valid_for_a_few_seconds(agent: Agent) -> None:
    """Without a new one the GPUs are unknown, as if the driver did not answer."""
    nvml = RemoteNvml("gpu2", agent.reports)
    with pytest.raises(Unanswered, match="gpu2 does not report"):
        nvml.read()
    link = await agent.dial("a" * 64)

    assert await agent.report(link, REPORT) == REPORT
    assert nvml.read() == REPORT.gpus
    assert agent.reports.clock_offset_s == 30.0

    agent.clock.now += STALE_S
    with pytest.raises(Unanswered, match="gpu2 does not report"):
        nvml.read()


async def test_one_gpu_is_read_anew(agent: Agent) -> None:
    """From a thread; a GPU that is gone and a driver that is gone are different."""
    nvml = RemoteNvml("gpu2", agent.reports)
    link = await agent.dial("a" * 64)

    async def read(report: HostReport) -> Any:
        reading = asyncio.create_task(asyncio.to_thread(nvml.read_one, "GPU-a"))
        await asyncio.to_thread(link.next, Kind.PING)
        link.send(Kind.REPORT, body=json.dumps(to_json(report)).encode())
        return await reading

    assert await read(REPORT) == GPU
    assert await read(replace(REPORT, gpus=Snapshot("580", ()))) is None
    with pytest.raises(NoDriver, match="unloaded"):
        await read(replace(REPORT, gpus=None, no_driver="unloaded"))


async def test_each_error_is_passed_on_once(agent: Agent) -> None:
    """An agent repeats its last errors; another agent counts from 1 again."""
    nvml = RemoteNvml("gpu2", agent.reports)
    one, two = XidEvent("GPU-a", 48), XidEvent("GPU-a", 79)
    assert nvml.xids() == []
    link = await agent.dial("a" * 64)

    await agent.report(link, replace(REPORT, number=5, xids=((1, one),)))
    assert nvml.xids() == [one]
    await agent.report(link, replace(REPORT, number=6, xids=((1, one), (2, two))))
    assert nvml.xids() == [two]
    assert nvml.xids() == []
    other = await agent.dial("b" * 64)
    await agent.report(other, replace(REPORT, number=1, xids=((1, two),)))
    assert nvml.xids() == [two]


async def test_gpus_of_running_replicas_are_kept_until_the_agent_reports(agent: Agent) -> None:
    """Without their devices the replicas of an earlier server would be ended."""
    devices = HostDevices("gpu2", agent.reports, lambda _event: None)
    pool = PoolSettings(Path(), Path(), Path())
    used = replace(agent_record("gpu2", pool, has_gpus=True), devices=("gpu2/GPU-a",))
    idle = agent_record("gpu2", pool, has_gpus=False)

    found = devices.all(100.0, 1, [used, idle, used])

    assert [(one.id, one.kind, one.host) for one in found] == [
        ("gpu2/GPU-a", "cuda", "gpu2"),
        ("gpu2/cpu:0", "cpu", "gpu2"),
    ]
