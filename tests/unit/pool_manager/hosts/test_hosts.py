"""Hosts of a manager: what is defined, and which host an operation goes to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from pool_manager.core import events
from pool_manager.core.hosts import HostMemory
from pool_manager.core.machine import Machine
from pool_manager.drivers.fake import FakeDriver
from pool_manager.hosts.fleet import Fleet, FleetImages
from pool_manager.hosts.hosts import Hosts
from pool_manager.hosts.settings import HostSettings
from pool_manager.images import Images
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, DriverError, HostDown, Unknown
from registry.model.hosts import LOCAL_HOST, Host
from registry.tasks import Tasks
from runtime_image.contract.agent import HostReport
from tests.support.modelled import Clock


class Rig:
    """Hosts that were not started: nothing is connected."""

    def __init__(self, folder: Path, settings: HostSettings | None) -> None:
        self.events: list[events.Event] = []
        self.tasks = Tasks("rig")
        pool = PoolSettings(folder, folder, folder)
        self.clock = clock = Clock()
        self.hosts = Hosts(
            settings,
            pool,
            FakeDriver(),
            self.events.append,
            folder.joinpath,
            self.tasks,
            clock,
            clock,
        )


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = HostSettings("server", {}, range(1), local_labels={"zone": "a", "host": "other"})
    made = Rig(tmp_path, settings)
    yield made
    await made.hosts.close()
    await made.tasks.close()


async def test_every_host_has_its_name_as_a_label(rig: Rig) -> None:
    """This machine also has those of the settings; nothing can take the name's place."""
    rig.hosts.define_local()
    rig.hosts.define(Host("gpu2", "nn@gpu2", labels={"zone": "b"}, is_draining=True))

    assert rig.events == [
        events.HostDefined(LOCAL_HOST, (("host", "local"), ("zone", "a")), is_draining=False),
        events.HostDefined("gpu2", (("host", "gpu2"), ("zone", "b")), is_draining=True),
    ]
    assert [one.name for one in rig.hosts.members()] == ["gpu2"]


async def test_this_machine_is_up_since_the_start_of_the_server(rig: Rig) -> None:
    """Not since the start of the clock, which is the machine's."""
    began_s = rig.clock()
    rig.clock.now += 30

    [local] = rig.hosts.views(Machine([], lambda: "1"))

    assert (local.name, local.state, local.since_s) == (LOCAL_HOST, "up", began_s)


async def test_a_changed_login_replaces_the_host(rig: Rig) -> None:
    """The replicas go over to the new one; other settings change the host in place."""
    rig.hosts.define(Host("gpu2", "nn@gpu2"))
    [first] = rig.hosts.members()
    rig.hosts.define(Host("gpu2", "nn@gpu2", labels={"zone": "b"}, cpu_slots=3))
    assert rig.hosts.members() == [first]
    assert first.slots == 3

    rig.hosts.define(Host("gpu2", "nn@gpu2:2222"))
    [second] = rig.hosts.members()
    assert second is not first
    assert (second.control, second.records) == (first.control, first.records)


async def test_bad_definitions_are_refused(rig: Rig, tmp_path: Path) -> None:
    """An address that is none, a host that is not there, this machine, and a server without other
    hosts."""
    with pytest.raises(BadRequest, match="host gpu2: "):
        rig.hosts.define(Host("gpu2", "nn@gpu2:port"))
    with pytest.raises(Unknown, match="no host gpu3"):
        rig.hosts.remove("gpu3")
    with pytest.raises(BadRequest, match="the local host cannot be removed"):
        rig.hosts.remove(LOCAL_HOST)
    alone = Rig(tmp_path, None)
    with pytest.raises(DriverError, match="can have no other hosts"):
        alone.hosts.define(Host("gpu2", "nn@gpu2"))
    assert rig.events == alone.events == []


async def test_an_operation_on_a_removed_host_fails_as_on_one_that_is_down() -> None:
    """Its replicas are given up by the machine."""
    fleet = Fleet(FakeDriver(), {})

    assert await fleet.list_of(LOCAL_HOST) == set()
    assert not fleet.has_host("gpu2")
    assert fleet.data_socket("aaaa0001") == ""
    with pytest.raises(HostDown, match="gpu2 was removed"):
        await fleet.list_of("gpu2")


class Pins:
    """Images of one engine, or of a host, whose pins are removed."""

    def __init__(self, name: str = "", *, is_up: bool = True) -> None:
        self.name, self.is_up = name, is_up
        self.kept: list[Collection[str]] = []
        self.find = self.pull = self.pin = self.pinned = lambda: None

    async def unpin_others(self, ids: Collection[str]) -> None:
        self.kept.append(ids)
        if self.name == "gpu2":
            raise HostDown("gpu2 is gone")

    async def prune(self, ids: Collection[str]) -> list[Any]:
        self.kept.append(ids)
        return ["removed"]


async def test_pins_of_images_go_on_all_hosts() -> None:
    """A host that fails or is down does not keep the others."""
    here: Any = Pins()
    there: Any = {one.name: one for one in (Pins("gpu2"), Pins("gpu3"), Pins("gpu4", is_up=False))}
    images = FleetImages(cast("Images", here), there)

    await images.unpin_others(["a"])
    assert await images.prune(["b"]) == ["removed"]

    assert here.kept == there["gpu2"].kept == there["gpu3"].kept == [["a"], ["b"]]
    assert there["gpu4"].kept == []


async def test_the_memory_of_all_hosts_is_told(rig: Rig) -> None:
    """That of this machine, and of another one while its agent reports."""
    rig.hosts.define(Host("gpu2", "nn@gpu2"))
    reports = rig.hosts.members()[0].agent.reports
    assert [one.host for one in rig.hosts.memories()] == [LOCAL_HOST]
    report = HostReport(1, None, "", True, (), 4096.0, 1024.0, 8, 1.0, 1.0, 0.0, 0.0)

    reports._receive(report)

    told = {one.host: one.memory for one in rig.hosts.memories()}
    assert told["gpu2"] == HostMemory(4096.0, 1024.0)
